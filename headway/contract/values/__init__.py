"""Small values that several contract models share: names, quantities, texts."""
