"""Jobs over several databases: docs/explanation/scale.md."""
