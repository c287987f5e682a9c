"""A classifier as one ONNX file: pixels in, probabilities of its classes out."""

import contextlib
import io
import json
import logging
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from derts.errors import DertsError
from derts.files import write_atomically
from derts.learners.pool_features import evaluation_mode
from derts.predict import Classifier


class _ExportedNetwork(nn.Module):
    """uint8 [n, size, size, channels], or features [n, d] -> probabilities [n, classes]."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.learner, self.adapted = classifier.learner, classifier.adapted
        self.pretrained = classifier.learner.embedding.pretrained

    def forward(self, images: Tensor) -> Tensor:
        items = self.learner.embedding.inputs(images, torch.float32)
        if self.pretrained is not None:
            items = self.pretrained(items)
        features: Tensor = self.learner.backbone(items)
        found: Tensor = self.learner.logits(self.adapted, features[None])[0].softmax(-1)
        return found


def save_onnx(classifier: Classifier, path: Path) -> Path:
    """Write backbone and prototypes (ANIL: the adapted head) of a classifier.

    Input "images" uint8 [n, size, size, channels], or features float [n, d]; output
    "probabilities" float [n, classes]; the file's metadata names the classes, as a JSON list. Needs
    derts[onnx].
    """
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise DertsError(f'an .onnx file needs {error.name}: pip install "derts[onnx]"') from None
    if not classifier.learner.embeds:
        raise DertsError("maml adapts its whole network and cannot be exported: use protonet")
    model, said = classifier.model, io.StringIO()
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it misses torchvision, and says so
    example = torch.zeros(
        2, *model.shape, dtype=torch.float if model.takes_features else torch.uint8
    )
    network = _ExportedNetwork(classifier).eval()
    with evaluation_mode(classifier.learner), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter's own packages
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            program = torch.onnx.export(
                network, (example,), dynamo=True, input_names=["images"],
                output_names=["probabilities"], verbose=False, optimize=False,
                dynamic_shapes={"images": {0: torch.export.Dim("n", min=1, max=1 << 20)}},
            )  # fmt: skip
    assert program is not None
    proto = program.model_proto
    onnx.helper.set_model_props(proto, {"classes": json.dumps(list(classifier.class_names))})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, proto.SerializeToString())
    return path
