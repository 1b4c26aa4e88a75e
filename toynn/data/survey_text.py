"""Survey one long text: its tokens and its repeated lines."""

from collections.abc import Iterator
from pathlib import Path

from toynn.data.reader import Encoder
from toynn.data.stream import Progress, blocks, silent
from toynn.data.survey import Survey, Vocabulary, hash_of, words_of

LINE = 32  # characters: shorter lines repeat in any text
ENDING = 0.9  # the share of a text before the held-out part


def survey_text(
    path: Path,
    encoder: Encoder,
    *,
    vocabulary: Vocabulary | None = None,
    progress: Progress = silent,
) -> Survey:
    """Survey a UTF-8 text; its rows are its lines of LINE or more characters. Raises DataError."""
    survey = Survey(path, "one text, in windows", None, 0)

    def lines() -> Iterator[str]:
        number, rest = 0, ""
        for block in blocks(path, progress):
            survey.bytes += len(block.encode())
            yield block
            *whole, rest = (rest + block).split("\n")
            for line in whole:
                number += 1
                _note(survey, number, line)
        _note(survey, number + 1, rest)

    for ids in encoder.encode_blocks(lines()):
        survey.tokens += len(ids)
        if vocabulary is not None and len(ids):
            vocabulary.look(ids, survey)
    return survey


def held_lines(survey: Survey) -> tuple[list[int], list[int]]:
    """Return the lines before the last tenth of the text and the lines in it, approximately."""
    ends = int(survey.lengths[-1] * ENDING) if survey.rows else 0  # lengths: where each line ends
    cut = next((k for k, end in enumerate(survey.lengths) if end > ends), survey.rows)
    return list(range(cut)), list(range(cut, survey.rows))


def _note(survey: Survey, number: int, line: str) -> None:
    """Record a line that is long enough, and the number of characters up to its end."""
    line = line.strip()
    if len(line) >= LINE:
        before = survey.lengths[-1] if survey.rows else 0
        survey.lengths.append(before + len(line))
        survey.exact.append(hash_of(line))
        survey.alike.append(hash_of(words_of(line)))
        survey.asked.append(0)
        survey.places.append(number)
