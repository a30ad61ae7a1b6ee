"""Fixtures every test may use."""

from tests.fake_nvml.fixture import fake_nvml, fake_nvml_library

__all__ = ["fake_nvml", "fake_nvml_library"]
