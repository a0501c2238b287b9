"""The training loop: what a step computes, what it keeps, and that it learns."""

from __future__ import annotations

import csv
import math

import pytest
import torch
from making import make_config, make_photos
from safetensors.torch import save_file

from disk_ops import DISKDetector
from disk_ops.checkpoint import weights_digest
from disk_ops.group import Group
from disk_ops.io.output import OutputError
from disk_ops.scenes.errors import DataError
from disk_ops.training.config import ModelConfig
from disk_ops.training.data.mixture import Mixture
from disk_ops.training.export import read_record
from disk_ops.training.guards import TrainingError
from disk_ops.training.loss import PolicyGradientLoss
from disk_ops.training.network import make_detector, origin
from disk_ops.training.rewards import HomographyReward
from disk_ops.training.run import open_data, train
from disk_ops.training.schedule import annealing
from disk_ops.training.settings import SettingsError
from disk_ops.training.trainer import Trainer

ALONE = Group()


@pytest.fixture
def photos(tmp_path):
    return make_photos(tmp_path / "photos")


def make_trainer(config, folder):
    data = open_data(config, pytest.fail)
    mixture = Mixture(data.training, data.weights, config.seed)
    return Trainer(config, folder, ALONE), mixture


def batch_of(mixture, config, step):
    return [mixture[step * config.data.batch_size + i] for i in range(config.data.batch_size)]


def gradients(trainer):
    return [parameter.grad.clone() for parameter in trainer.parameters]


def test_a_step_is_the_gradient_of_the_loss(photos, tmp_path):
    config = make_config(photos, optimizer={"clip": 0.0})
    trainer, mixture = make_trainer(config, tmp_path)
    step = 3
    values = annealing(step, config.steps, config.schedule, config.optimizer)
    twin = DISKDetector(16)
    twin.load_state_dict(trainer.detector.state_dict())
    batch = batch_of(mixture, config, step)
    trainer.step(step, batch)

    drawn = []
    sample = trainer.detector.sample
    trainer.detector.load_state_dict(twin.state_dict())
    trainer.detector.sample = lambda *arguments: drawn.append(sample(*arguments)) or drawn[-1]
    for loaded in batch:
        trainer._sample_features(loaded.sample.images / 255, loaded.sample.mask, loaded.position)
    total = 0.0
    for loaded, features in zip(batch, drawn, strict=True):
        homographies = loaded.sample.homographies
        reward = HomographyReward(1.5, 1.0, -0.25 * values.ramp)
        geometry = reward(
            features[0].keypoints, features[1].keypoints, homographies[1] @ torch.linalg.inv(homographies[0])
        )
        loss, _ = PolicyGradientLoss(-0.001 * values.ramp)(features, {(0, 1): geometry}, values.theta)
        total = total + loss / len(batch)
    expected = torch.autograd.grad(total, trainer.parameters)
    for ours, theirs in zip(gradients(trainer), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_recomputed_activations_give_the_same_gradient(photos, tmp_path):
    plain = make_config(photos)
    first, mixture = make_trainer(plain, tmp_path)
    second, _ = make_trainer(make_config(photos, compute={"device": "cpu", "memory_gb": 1e-6}), tmp_path)
    assert second.recompute and not first.recompute
    for trainer in (first, second):
        trainer.step(0, batch_of(mixture, plain, 0))
    for ours, theirs in zip(gradients(first), gradients(second), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_bfloat16_network_has_float32_probabilities(photos, tmp_path):
    config = make_config(photos, compute={"device": "cpu", "amp": True})
    trainer, mixture = make_trainer(config, tmp_path)
    loaded = mixture[0]
    features = trainer._sample_features(loaded.sample.images / 255, loaded.sample.mask, 0)
    assert {image.logp.dtype for image in features} == {torch.float32}
    assert {image.descriptors.dtype for image in features} == {torch.float32}
    trainer.step(0, [loaded])
    assert all(gradient.isfinite().all() for gradient in gradients(trainer))


def test_masked_pixels_are_never_keypoints(photos, tmp_path):
    config = make_config(photos)
    trainer, mixture = make_trainer(config, tmp_path)
    sample = mixture[0].sample
    mask = sample.mask.clone()
    mask[..., :32] = False
    features = trainer._sample_features(sample.images / 255, mask, 0)
    assert all(image.n and image.keypoints[:, 0].min() >= 32 for image in features)


def test_averaged_weights_are_the_result(photos, tmp_path):
    config = make_config(photos, optimizer={"ema": 0.5})
    trainer, mixture = make_trainer(config, tmp_path)
    weights = []
    for step in range(3):
        trainer.step(step, batch_of(mixture, config, step))
        weights.append(trainer.parameters[0].detach().clone())
    expected = weights[0]
    for number, later in enumerate(weights[1:], 1):
        decay = min(0.5, (1 + number) / (10 + number))
        expected = decay * expected + (1 - decay) * later
    torch.testing.assert_close(next(iter(trainer.result.parameters())).detach(), expected)


def test_a_step_without_finite_loss_is_skipped_and_the_scene_named(photos, tmp_path, monkeypatch):
    config = make_config(photos)
    trainer, mixture = make_trainer(config, tmp_path)
    notes = []
    monkeypatch.setattr(trainer.log, "note", notes.append)
    before = [parameter.detach().clone() for parameter in trainer.parameters]
    batch = batch_of(mixture, config, 0)
    sample = trainer.detector.sample

    def poisoned(*arguments):
        return [image._replace(logp=image.logp * math.nan) for image in sample(*arguments)]

    monkeypatch.setattr(trainer.detector, "sample", poisoned)
    trainer.step(0, batch)
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.parameters, strict=True))
    assert trainer.skipped.total == 1
    assert len(notes) == 1 and batch[0].sample.name in notes[0]
    with pytest.raises(TrainingError, match="steps in a row"):
        for step in range(1, 100):
            trainer.step(step, batch)


def test_an_image_without_keypoints_is_no_error(photos, tmp_path):
    config = make_config(photos)
    trainer, mixture = make_trainer(config, tmp_path)
    with torch.no_grad():
        trainer.detector.unet.last_convolution.bias[-1] = -1e4
    trainer.step(0, batch_of(mixture, config, 0))
    assert trainer.skipped.total == 0
    assert all(torch.count_nonzero(gradient) == 0 for gradient in gradients(trainer))


def test_degenerate_training_stops_with_an_explanation(photos, tmp_path):
    config = make_config(photos, steps=1000, data={"batch_size": 1})
    trainer, mixture = make_trainer(config, tmp_path)
    with torch.no_grad():
        trainer.detector.unet.last_convolution.bias[-1] = -1e4
    batch = batch_of(mixture, config, 0)
    trainer.degeneration.PATIENCE = 3
    trainer.degeneration.steps = 2
    with pytest.raises(TrainingError, match="stopped proposing keypoints"):
        trainer.step(0, batch)


def test_a_broken_photo_is_reported_once(photos, tmp_path, capsys):
    (photos / "broken.png").write_bytes(b"no image")
    source = [{"kind": "photos", "path": str(photos), "use": "train"}]
    train(make_config(photos, steps=8, source=source), tmp_path / "run", quiet=True)  # more than one pass
    assert capsys.readouterr().err.count("broken.png") == 1


def test_a_whole_training(photos, tmp_path):
    config = make_config(photos)
    outcome = train(config, tmp_path / "run", quiet=True)
    assert outcome.finished and outcome.step == 6 and outcome.best >= 0
    with (tmp_path / "run" / "history.csv").open() as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["2", "4", "6"]
    with (tmp_path / "run" / "validation.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["3", "6"]
    assert max(float(row["score"]) for row in rows) == pytest.approx(outcome.best, abs=1e-5)
    for name in ("best.safetensors", "last.safetensors"):
        detector = DISKDetector.from_pretrained(tmp_path / "run" / name)
        assert detector.desc_dim == 16
        assert read_record(tmp_path / "run" / name)["config"]["steps"] == 6
    checkpoints = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert checkpoints == ["step-000000004.pt", "step-000000006.pt"]
    DISKDetector.from_pretrained(tmp_path / "run" / "checkpoints" / checkpoints[0])  # any checkpoint is a detector


def test_a_folder_in_use_is_refused(photos, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("precious")
    for existing in ("refuse", "resume", "overwrite"):
        with pytest.raises(OutputError, match="is not empty and holds no training"):
            train(make_config(photos), tmp_path / "run", quiet=True, existing=existing)
    assert (tmp_path / "run" / "thesis.txt").read_text() == "precious"


def test_overwriting_keeps_what_is_not_of_the_training(photos, tmp_path):
    train(make_config(photos, steps=2), tmp_path / "run", quiet=True)
    (tmp_path / "run" / "thesis.txt").write_text("precious")
    with pytest.raises(SettingsError):  # nothing is removed before all else is known to work
        train(make_config(photos, model={"init": "gone"}), tmp_path / "run", quiet=True, existing="overwrite")
    assert (tmp_path / "run" / "last.safetensors").exists()
    init = {"init": str(tmp_path / "run" / "last.safetensors")}
    train(make_config(photos, steps=3, model=init), tmp_path / "run", quiet=True, existing="overwrite")
    assert (tmp_path / "run" / "thesis.txt").read_text() == "precious"
    checkpoints = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert checkpoints == ["step-000000002.pt", "step-000000003.pt"]


def test_the_record_tells_which_weights_a_training_began_with(photos, tmp_path):
    train(make_config(photos, steps=2), tmp_path / "first", quiet=True)
    first = tmp_path / "first" / "last.safetensors"
    config = make_config(photos, steps=4, model={"init": str(first)})
    train(config, tmp_path / "second", quiet=True)
    own, found = read_record(first), read_record(tmp_path / "second" / "last.safetensors")
    assert "origin" not in own
    digest = weights_digest(DISKDetector.from_pretrained(first).state_dict())
    assert found["origin"] == {"weights": digest, "record": own}
    first.unlink()  # not needed any more to go on
    (tmp_path / "second" / "last.safetensors").unlink()
    train(config, tmp_path / "second", quiet=True, existing="resume")
    assert read_record(tmp_path / "second" / "last.safetensors")["origin"] == found["origin"]


def test_weights_whose_record_cannot_be_read_can_be_begun_with(tmp_path):
    save_file(DISKDetector(16).state_dict(), tmp_path / "w.safetensors", {"record": "no JSON"})
    config = ModelConfig(16, str(tmp_path / "w.safetensors"))
    found = origin(config, make_detector(config, 0))
    assert found is not None and found["record"] is None


def test_validation_images_that_cannot_be_read_are_told_at_the_start(photos, tmp_path):
    broken = tmp_path / "broken"
    make_photos(broken)
    for path in broken.iterdir():
        path.write_bytes(b"no image")
    source = [{"kind": "photos", "path": str(path), "use": use} for path, use in ((photos, "train"), (broken, "val"))]
    with pytest.raises(DataError, match=f"photos {broken}: no sample for validation can be used"):
        train(make_config(photos, source=source), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_no_data_is_an_error(photos, tmp_path):
    with pytest.raises(SettingsError, match="source must name data to train on"):
        train(make_config(photos, source=[]), tmp_path / "run", quiet=True)
