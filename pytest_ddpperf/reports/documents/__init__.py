"""What reports write as JSON: types that builders are checked against, and that the published schemas are made of."""
