"""What export_model.py is made of: finds a model, exports it with its loss, checks the result and writes it."""
