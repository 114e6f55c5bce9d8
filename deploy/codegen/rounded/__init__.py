"""Products whose inputs are rounded to whole numbers: of how many bits, and a hyperbolic tangent that makes them."""
