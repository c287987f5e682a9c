"""review.html: one file in which a person goes through suspicious labels and decides."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import torch

from derts.labels.judging import JudgedItems
from derts.report.pictures import jpeg_text, to_picture
from derts.report.tables import html_page, page_part

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
    trust, has_pictures = judged.trust, judged.noun == "image"
    rows: list[dict[str, Any]] = [
        {
            "path": judged.paths[image],
            "split": judged.places[image][0],
            "given": int(trust.given[image]),
            "suggested": int(trust.suggestion[image]),
            "right": round(float(trust.probability[image]), 3),
            "sure": round(float(trust.sure[image]), 3),
        }
        for image in images
    ]
    key = hashlib.sha256(json.dumps([rows, trust.classes]).encode()).hexdigest()[:16]
    typical: dict[int, list[str]] = {}
    for number in sorted({row[which] for row in rows for which in ("given", "suggested")}):
        members = judged.typical(number, TYPICAL)
        typical[number] = [judged.paths[one] for one in members]
        if has_pictures:
            typical[number] = [_thumbnail(one, TYPICAL_SIDE) for one in judged.items(members)]
    if has_pictures:
        for row, pixels in zip(rows, judged.items(images), strict=True):
            row["picture"] = _thumbnail(pixels, SUSPECT_SIDE)
    content: dict[str, Any] = {"key": key, "classes": trust.classes, "suspects": rows}
    content |= {"typical": typical, "pictures": has_pictures}
    # no name can end the script that holds the data
    text = json.dumps(content, ensure_ascii=False).replace("<", "\\u003c")
    body = page_part("review.html").replace("/*DATA*/", text, 1)
    return html_page("derts review", body, page_part("review.css"))


def _thumbnail(pixels: torch.Tensor, side: int) -> str:
    picture = to_picture(pixels)
    picture.thumbnail((side, side))
    return jpeg_text(picture, 80)
