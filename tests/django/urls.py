"""The addresses of the example project, and a page whose module has a task."""

from project.urls import urlpatterns as urlpatterns

from tests.django import pages as pages
