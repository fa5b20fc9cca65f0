"""The board's program: turns an algorithm's actions into I/O. The only loop of the product lives
here."""
