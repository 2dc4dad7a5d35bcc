"""Examples that come with the package. ``lakeferry demo`` runs :mod:`lakeferry.examples.demo`."""
