"""The shop: orders, and the tasks that confirm them."""
