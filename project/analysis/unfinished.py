"""Files of predictions: what is there already, and where an interrupted command continues."""

import hashlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from project.engine.errors import UserError, printable
from project.engine.loading.scan import spelt
from project.engine.run.rows import (
    RESUMABLE,
    Columns,
    Row,
    ending_of,
    finished_rows,
    partial_path,
    partial_paths,
    remove_left,
)


class Finished(NamedTuple):
    """What an interrupted command has done.

    Attributes:
        begin: How many bytes of the file stay.
        done: How many rows these are.
        unreadable: How many of them are of files that cannot be read.
        first: The first of them, with their paths.
        left: The paths that have no row yet.
    """

    begin: int
    done: int
    unreadable: int
    first: list[tuple[str, Row]]
    left: Iterator[str]


class PredictionsFile:
    """A file that a command writes predictions to, beside its name at first.

    Args:
        path: The file.
        checkpoint: What makes the predictions.
        settings: What else they depend on; with other ones, or another checkpoint, they are not continued.

    Raises:
        UserError: The ending says nothing, or the checkpoint cannot be read.
    """

    def __init__(self, path: str, checkpoint: str, settings: object) -> None:
        self.path, self._ending = path, ending_of("--output", path)
        with open(checkpoint, "rb") as file:
            digest = hashlib.file_digest(file, lambda: hashlib.blake2b(repr(settings).encode(), digest_size=4))
        self.partial = partial_path(path, digest.hexdigest())

    def require_new(self) -> None:
        """Protects what is there.

        Raises:
            UserError: There is such a file, or one that is not finished.
        """
        if Path(self.path).exists():
            raise UserError(f"--output: '{printable(self.path)}' is there already; --overwrite replaces it")
        if partial_paths(self.path):
            raise UserError(
                f"--output: '{printable(self.path)}' was begun and not finished; the same command with --resume continues"
                " it, --overwrite begins anew"
            )

    def remove_others(self) -> None:
        """Removes what other commands have left that have ended; what this one has left, it writes anew."""
        for partial in partial_paths(self.path):
            if partial != self.partial:
                remove_left(partial)

    def is_finished(self) -> bool:
        """Whether the file is there, and nothing is left to resume.

        Raises:
            UserError: What is left is another checkpoint's, or such a file cannot be continued.
        """
        if self._ending not in RESUMABLE:
            raise UserError(f"--resume continues {' and '.join(RESUMABLE)} files, '{printable(self.path)}' begins anew")
        others = [partial for partial in partial_paths(self.path) if partial != self.partial]
        if others and not self.partial.exists():
            raise UserError(
                f"--resume: '{printable(others[0])}' was written with another checkpoint, --top_k or --flips; --overwrite"
                " begins anew"
            )
        return Path(self.path).exists() and not self.partial.exists()

    def whole(self, columns: Columns, paths: Iterator[str], first: int) -> Finished:
        """Reads a finished file, whichever checkpoint wrote it, and leaves nothing to do.

        Args:
            columns: The columns.
            paths: All paths.
            first: How many of the rows to return.

        Raises:
            UserError: The rows are not those of these paths, or have other columns.
        """
        found = Finished(0, 0, 0, [], iter(()))
        for _, so_far in self._read(self.path, columns, paths, first):
            found = so_far
        if next(paths, None) is not None:
            raise UserError(
                f"--resume: '{printable(self.path)}' is finished, but has not a row with these columns for each of the files:"
                " they or --top_k have changed; --overwrite begins anew"
            )
        return found._replace(begin=0, left=iter(()))

    def finished(self, columns: Columns, paths: Iterator[str], whole: int, first: int) -> Finished:
        """Reads what an interrupted command has written.

        Args:
            columns: The columns.
            paths: All paths.
            whole: Rows stay in groups of this size, those of one step of all devices; other batches might round
                differently on a GPU.
            first: How many of the rows to return.

        Raises:
            UserError: The rows are those of other paths.
        """
        kept = Finished(0, 0, 0, [], paths)
        if not self.partial.exists():
            return kept
        group: list[str] = []
        for path, found in self._read(self.partial, columns, paths, first):
            group.append(path)
            if found.done % whole == 0:
                group, kept = [], found._replace(first=found.first[:])
        return kept._replace(left=chain(group, paths))

    def _read(
        self, file: str | Path, columns: Columns, paths: Iterator[str], first: int
    ) -> Iterator[tuple[str, Finished]]:
        """Each path that has a row, and what is known up to there; its first rows are one list, which grows."""
        unreadable, rows = 0, list[tuple[str, Row]]()
        for count, (path, row, end) in enumerate(self._rows(file, columns, paths), start=1):
            unreadable += row["error"] is not None
            if len(rows) < first:
                rows.append((path, row))
            yield path, Finished(end, count, unreadable, rows, paths)

    def _rows(self, file: str | Path, columns: Columns, paths: Iterator[str]) -> Iterator[tuple[str, Row, int]]:
        """Each path that has a row, the row, and where it ends."""
        for count, (row, end) in enumerate(finished_rows(file, self._ending, columns), start=1):
            path = next(paths, None)
            if path is None or spelt(path) != row["path"]:
                there = f"the files now have '{printable(path)}'" if path is not None else "there are fewer files now"
                raise UserError(
                    f"--resume: row {count} of '{printable(file)}' is of '{printable(row['path'])}', but"
                    f" {there}; --overwrite begins anew"
                )
            yield path, row, end
