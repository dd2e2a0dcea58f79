"""Progress on standard error: a bar on a terminal, elsewhere one that is renewed once a minute."""

import sys

from tqdm import tqdm


def progress_bar(total: int, done: int = 0, text: str | None = None) -> tqdm:
    """Starts a bar that shows how many images are done, how fast, and how long the rest will take.

    Args:
        total: The number of images.
        done: The number of images that were done before.
        text: A preparation, such as ``checking images``, whose bar goes again.
    """
    is_watched = sys.stderr.isatty()
    bar: tqdm = tqdm(
        total=total,
        initial=done,
        desc=text,
        unit=" images",
        mininterval=0.1 if is_watched else 60,
        delay=1,
        leave=is_watched and text is None,
    )
    return bar
