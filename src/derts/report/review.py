"""review.html: one file in which a person goes through suspicious labels and decides."""

import base64
import hashlib
import io
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import torch

from derts.labels.judged import JudgedItems
from derts.report.pictures import to_picture

SUSPECT_SIDE, TYPICAL_SIDE = 112, 64  # pixels, at most
TYPICAL = 6  # images of a class beside a suspect
FEWEST_SHOWN = 20  # even where hardly a label looks wrong


def suspects(judged: JudgedItems, most: int) -> list[int]:
    """The images to review: labels that are more likely wrong than right, least trusted first."""
    wrong = int((judged.trust.probability < 0.5).sum())
    found: list[int] = judged.trust.order[: min(most, max(wrong, FEWEST_SHOWN))].tolist()
    return found


def review_page(judged: JudgedItems, images: Sequence[int]) -> str:
    """The page for these images. Their names are data on it, never markup."""
    trust, places = judged.trust, judged.places
    rows: list[dict[str, Any]] = [
        {
            "path": judged.paths[image],
            "split": places[image][0],
            "given": int(trust.given[image]),
            "suggested": int(trust.suggestion[image]),
            "right": round(float(trust.probability[image]), 3),
            "sure": round(float(trust.sure[image]), 3),
        }
        for image in images
    ]
    key = hashlib.sha256(json.dumps([rows, trust.classes]).encode()).hexdigest()[:16]
    shown = {row[which] for row in rows for which in ("given", "suggested")}
    typical: dict[int, list[str]] = {}
    has_pictures = judged.noun == "image"
    for number in sorted(shown):
        members = judged.typical(number, TYPICAL)
        if has_pictures:
            typical[number] = [_thumbnail(one, TYPICAL_SIDE) for one in judged.items(members)]
        else:
            typical[number] = [judged.paths[one] for one in members]
    if has_pictures:
        for row, pixels in zip(rows, judged.items(images), strict=True):
            row["picture"] = _thumbnail(pixels, SUSPECT_SIDE)
    content: dict[str, Any] = {
        "key": key,
        "classes": trust.classes,
        "suspects": rows,
        "typical": typical,
    }
    content |= {"pictures": has_pictures}
    # no name can end the script that holds the data
    text = json.dumps(content, ensure_ascii=False).replace("<", "\\u003c")
    template = files("derts.report").joinpath("review.html").read_text(encoding="utf-8")
    return template.replace("/*DATA*/", text, 1)


def _thumbnail(pixels: torch.Tensor, side: int) -> str:
    """A small JPEG, base64."""
    picture = to_picture(pixels)
    picture.thumbnail((side, side))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=80)
    return base64.b64encode(buffer.getvalue()).decode("ascii")
