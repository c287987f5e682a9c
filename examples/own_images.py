"""A trained model on images of yours, in three lines.

derts train --data my-store --out runs/first
python examples/own_images.py runs/first my-examples inbox
"""

from __future__ import annotations

import sys

import derts


def main(run: str, support: str, query: str) -> None:
    classifier = derts.load_model(run).adapt(support)  # a folder per class, a few images each
    for found in classifier.predict(query):  # a folder of images
        print(f"{found.name}  {found.label}  {found.probability:.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
