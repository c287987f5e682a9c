"""Images to features, once: a store of features from a store of images."""

from __future__ import annotations

from pathlib import Path

from derts.config import HardwareConfig
from derts.data import StoreDescription, item_names, open_data
from derts.data.store_writing import SplitContent, check_destination, write_store
from derts.errors import DertsError
from derts.hardware import choose_device
from derts.labels.known_errors import TRUE_LABELS
from derts.models.pretrained import load_pretrained
from derts.progress import Progress, silent


def embed_store(
    data: str,
    destination: Path,
    backbone: str,
    weights: str = "",
    *,
    device: str = "auto",
    overwrite: bool = False,
    progress: Progress = silent,
) -> StoreDescription:
    """Write the features of a store's images by a pretrained backbone as a store.

    It remembers what made them, so that a model trained on it takes images as well.
    """
    check_destination(destination, overwrite=overwrite)
    tables = open_data(data)
    if destination.resolve() == Path(data).resolve():
        raise DertsError(f"{destination} is the source itself: choose another destination")
    network, shape = load_pretrained(backbone, weights), next(iter(tables.values())).item_shape
    network.check_images(shape)
    place, count = choose_device(HardwareConfig(device=device)), sum(map(len, tables.values()))
    true = Path(data) / TRUE_LABELS
    kept = str(Path(weights).resolve()) if Path(weights).is_file() else weights
    with progress("embedding", count, "images") as advance:
        contents = {
            name: SplitContent(
                network.blocks(table, place, advance),
                (network.dim,),
                table.labels,
                table.class_names,
                table.categories,
                item_names(data, name),
            )
            for name, table in tables.items()
        }
        return write_store(
            contents,
            destination,
            {"kind": "features of", "name": Path(data).name, "by": backbone},
            settings={
                "embedded_by": {"backbone": backbone, "weights": kept, "item_shape": list(shape)}
            },
            overwrite=overwrite,
            beside={TRUE_LABELS: true.read_bytes()} if true.is_file() else None,
        )
