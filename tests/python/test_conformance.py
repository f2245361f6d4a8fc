"""Every case of the cases file and the lesson, with the conformance tests' own lines and tolerances, by the package."""

from through_package import conformance_tests

globals().update(conformance_tests("test_cases", "test_generated_cases", "test_lesson"))


def test_they_are_there():
    """A test that is renamed away would leave nothing behind."""
    assert len([name for name in globals() if name.startswith("test_")]) > 15
