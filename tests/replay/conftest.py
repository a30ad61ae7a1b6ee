"""Fixtures of the replay tests."""

from tests.fake_cuda.build import fake_cuda, fake_cuda_path

__all__ = ["fake_cuda", "fake_cuda_path"]
