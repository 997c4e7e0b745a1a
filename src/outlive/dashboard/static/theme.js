// Loaded before the page is drawn, so that a chosen theme does not flash.
"use strict";
try {
  const chosen = localStorage.getItem("outlive-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // The browser keeps nothing: the system's theme holds.
}
