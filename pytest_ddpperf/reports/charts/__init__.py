"""What reports draw: a chart is data, made of the results document, and any renderer can draw it."""
