"""The pages, one module each, which turn views of the API into values for the templates."""
