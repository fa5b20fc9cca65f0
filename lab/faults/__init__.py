"""Plants mistakes in the product, one by one, and sees which of them the tests find.

places  where a mistake can be made, and what it would be
plant   makes it, runs the nearest tests, and puts the file right again
"""
