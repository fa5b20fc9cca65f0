#!/usr/bin/env python3
"""Write edgegossip/training/data/digits.npz from scikit-learn's copy of the UCI digits (needs
scikit-learn).

    python scripts/make_digits.py [DEST]

images: uint8[1797, 8, 8], values 0..16; labels: uint8[1797]; in the order of the source.
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

DEST = Path(__file__).parent.parent / "edgegossip/training/data/digits.npz"

if __name__ == "__main__":
    source = load_digits()
    images, labels = source.images.astype(np.uint8), source.target.astype(np.uint8)
    assert (images == source.images).all() and images.shape == (1797, 8, 8)
    np.savez_compressed(sys.argv[1] if len(sys.argv) > 1 else DEST, images=images, labels=labels)
