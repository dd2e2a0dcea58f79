import pytest

from project.data.drawn.drawing import draw_flowers


@pytest.fixture(autouse=True, scope="package")
def drawn_anew():
    """Draws each flower as often as it is asked for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("project.data.drawn.module.draw_flowers", draw_flowers)
        yield
