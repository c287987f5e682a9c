"""Images to features, once: a store of features from one of images, and examples from either."""

from pathlib import Path

import torch
from torch import Tensor

from derts.data import StoreDescription, item_names, open_data
from derts.data.decode import Pixels
from derts.data.store import store_settings
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
    place, count = choose_device(device), sum(map(len, tables.values()))
    true = Path(data) / TRUE_LABELS
    kept = str(Path(weights).resolve()) if Path(weights).is_file() else weights
    with progress("embedding", count, "images") as advance:
        contents = {
            name: SplitContent(
                network.blocks(table, place, advance), (network.dim,), table.labels,
                table.class_names, table.categories, item_names(data, name),
            )
            for name, table in tables.items()
        }  # fmt: skip
        origin = {"kind": "features of", "name": Path(data).name, "by": backbone}
        made_by = {"backbone": backbone, "weights": kept, "item_shape": list(shape)}
        return write_store(
            contents, destination, origin, settings={"embedded_by": made_by}, overwrite=overwrite,
            beside={TRUE_LABELS: true.read_bytes()} if true.is_file() else None,
        )  # fmt: skip


def stored_examples(store: Path | str, backbone: str) -> dict[str, list[Pixels] | Tensor]:
    """The items of all splits of a store, by class: images, or features by the backbone.

    Without a backbone: features, whatever made them.
    """
    made_by = (store_settings(store).get("embedded_by") or {}).get("backbone")
    rows: dict[str, list[Tensor]] = {}
    for table in open_data(store).values():
        if not backbone and not table.of_features:
            wrong = f"{store} holds images, and the model was trained on features"
            raise DertsError(f"{wrong}: give features, made the same way")
        if backbone and table.of_features and made_by != backbone:
            wrong = f"{store} holds features by {made_by or 'something else'}, not by {backbone}"
            raise DertsError(f"{wrong}: give images, or embed them with it")
        for name, found in table.by_class().items():
            rows.setdefault(name, []).append(found)
    items = {name: torch.cat(found) for name, found in rows.items()}
    return {
        name: found if found.ndim == 2 else list(found.numpy())
        for name, found in items.items()
        if len(found)
    }
