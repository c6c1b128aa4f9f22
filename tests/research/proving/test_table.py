"""Tables of the proving ground: means and errors, and who wins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conelayers.errors import ModelError
from research.proving import frontier, pyepo
from research.proving.duels import by_setting, duels
from research.proving.figures import SCORES, before, elsewhere, keep, recall
from research.proving.table import beginning, prove, settings, table

SEEDS = range(4)


def figures(method: str, points: int, values: list[float], metric: str = "loss") -> list[dict[str, Any]]:
    """Rows as they are collected."""
    return [
        {
            "experiment": "e",
            "protocol": "p",
            "method": method,
            "points": points,
            "seed": s,
            "metric": metric,
            "value": v,
        }
        for s, v in zip(SEEDS, values, strict=False)
    ]


def test_wins_ties_and_losses_are_paired_by_seed() -> None:
    ours = [1.0, 2.0, 3.0, 4.0]
    rows = [
        *figures("learner", 10, ours),
        *figures("learner", 20, ours),
        *figures("learner", 30, ours),
        # Seeds differ far more than methods do: only pairs tell.
        *figures("other", 10, [v + 0.1 + 0.01 * (-1) ** s for s, v in zip(SEEDS, ours, strict=True)]),
        *figures("other", 20, [v + 0.1 * (-1) ** s for s, v in zip(SEEDS, ours, strict=True)]),
        *figures("other", 30, [v - 0.1 for v in ours]),
        *figures("same", 10, ours),
        *figures("once", 10, ours[:1]),
        *figures("elsewhere", 40, ours),
        *figures("other", 10, [9.0] * 4, "coverage"),
    ]
    told = duels(rows, "learner")
    assert told.splitlines()[2:] == [
        "| against | wins | ties | losses |",
        "|---|---|---|---|",
        "| other | 1 | 1 | 1 |",
        "| same | 0 | 1 | 0 |",
    ]
    assert "by loss" in told
    assert "coverage" not in told
    assert duels(rows, "") == ""
    # Against the better of two in every setting: "same" in the first, "other" where there is nothing else.
    both = duels(rows, "learner", ("other", "same")).splitlines()
    assert both[-1] == "| the best of other, same | 0 | 2 | 1 |"
    assert "best of" not in duels(rows, "learner", ("other", "missing"))


def test_the_best_of_several_is_found_on_the_draws_that_all_have() -> None:
    """One that has finished the easy draws only is not the best for that."""
    learner = figures("learner", 10, [4.0, 4.1, 1.0, 1.1])
    whole = figures("whole", 10, [3.0, 3.1, 0.5, 0.6])
    easy = [r | {"seed": SEEDS[2 + k]} for k, r in enumerate(figures("easy", 10, [0.9, 1.0]))]
    told = duels([*learner, *whole, *easy], "learner", ("whole", "easy"))
    assert told.splitlines()[-1] == "| the best of whole, easy | 0 | 0 | 1 |"


def test_settings_are_told_one_by_one_beside_the_best_of_several() -> None:
    """Means on the draws of the difference; what was not run there is left empty."""
    rows = [
        *figures("learner", 10, [4.0, 4.5, 9.0]),
        *figures("learner", 20, [1.0, 1.3]),
        *figures("learner", 30, [1.0]),
        *figures("whole", 10, [3.0, 3.1]),
        *figures("whole", 20, [2.0, 2.1]),
        *figures("whole", 30, [2.0]),
        *figures("part", 10, [5.0, 5.1]),
        *figures("peer", 10, [1.0, 1.1]),
    ]
    assert by_setting(rows, "learner", ("whole", "part", "missing")).splitlines()[2:] == [
        "| points | learner | whole | part | draws | less the best of them |  |",
        "|---|---|---|---|---|---|---|",
        "| 10 | 4.25 | 3.05 | 5.05 | 2 | +1.2e+00 ± 2e-01 | lost |",
        "| 20 | 1.15 | 2.05 |  | 2 | -9.0e-01 ± 1e-01 | won |",
    ]
    assert by_setting(rows, "learner", ("missing",)) == by_setting(rows, "", ("whole",)) == ""


def test_a_tie_ends_at_two_standard_errors() -> None:
    """Differences of 1 and 1 + 2a have the mean 1 + a and the error a: a tie from a = 1 on."""
    for a, expected in ((0.99, "| other | 1 | 0 | 0 |"), (1.01, "| other | 0 | 1 | 0 |")):
        rows = [*figures("learner", 10, [0.0, 0.0]), *figures("other", 10, [1.0, 1.0 + 2 * a])]
        assert expected in duels(rows, "learner")


def test_cells_are_means_and_standard_errors() -> None:
    assert "| 10 | 2 ± 0.58 (3) |" in table(figures("learner", 10, [1.0, 2.0, 3.0]))


def test_unknown_names_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="There is no benchmark 'chess': choose from"):
        prove("chess", tmp_path, None, 1, True, (), 1)
    with pytest.raises(ModelError, match="There is no method 'nobody': choose from"):
        prove("portfolio", tmp_path, None, 1, True, (), 1, against="nobody")
    with pytest.raises(ModelError, match="The battery needs its data"):
        prove("battery", tmp_path, None, 1, True, (), 1)
    with pytest.raises(ModelError, match=r"No task of \['SkWDRO'\] has model=kl, SVM: leave out"):
        prove("linear", tmp_path, None, 1, False, ("SkWDRO",), 1, where=("model=kl, SVM",))


def test_the_frontier_is_drawn(tmp_path: Path) -> None:
    rows = [
        {
            "problem": "newsvendor",
            "points": 100,
            "shift": shift,
            "method": name,
            "metric": metric,
            "value": v,
            "seed": s,
        }
        for s, v in enumerate((1.0, 2.0))
        for shift in ("means moved", "none")
        for name in ("mean", frontier.FITTED)
        for metric in ("mean", "cvar95")
    ]
    frontier.picture(rows, tmp_path)
    drawn = (tmp_path / "frontier.svg").read_text(encoding="utf-8")
    assert drawn.index("test data: none") < drawn.index("test data: means moved")


def test_settings_are_chosen_by_their_columns() -> None:
    tasks = pyepo.tasks(2)
    found = settings(tasks, ["problem=shortest path", "degree=8", "degree=6", "points=1000", "noise=0.5"])
    assert {task.columns["degree"] for task in found} == {6, 8}
    assert {tuple(task.columns[name] for name in ("problem", "points", "noise")) for task in found} == {
        ("shortest path", 1000, 0.5)
    }
    assert len(found) == 2 * 2 * len({task.method for task in tasks})
    assert settings(tasks, []) == tasks
    assert {task.seed for task in settings(tasks, [f"seed={pyepo.FIRST + 1}"])} == {pyepo.FIRST + 1}
    earlier = beginning(tasks, 10)
    assert {task.seed for task in earlier} == {10, 11}
    assert [task.columns for task in earlier] == [task.columns for task in tasks]
    assert beginning(tasks, None) == tasks
    with pytest.raises(ModelError, match="degree=, one of"):
        settings(tasks, ["degree=3"])
    for wrong in ("price=1", "degree", "=8", ""):
        with pytest.raises(ModelError, match="no setting"):
            settings(tasks, [wrong])


def test_figures_are_kept_by_draw_and_stand_beside_those_of_the_next_run(tmp_path: Path) -> None:
    """What is kept is what was scored, and the next version is paired with it draw by draw."""
    path = tmp_path / "figures.csv"
    earlier = [
        *figures("learner", 10, [1.0, 2.0, 3.0 + 1e-12, 4.0]),
        *figures("learner", 20, [1.0, 2.0]),
        *figures("learner", 10, [60.0] * 4, "seconds"),
    ]
    keep(earlier, SCORES, path)
    assert path.read_text(encoding="utf-8").splitlines() == [
        "points,method,metric,0,1,2,3",
        "10,learner,loss,1,2,3,4",
        "20,learner,loss,1,2,,",
    ]
    scored = [{name: str(r[name]) for name in ("points", "method", "seed")} for r in earlier if r["metric"] == "loss"]
    assert [{name: str(r[name]) for name in ("points", "method", "seed")} for r in recall(path)] == scored
    now = figures("learner", 10, [0.9, 1.9, 2.8])
    beside = before(path, now)
    assert [(r["method"], r["points"], r["seed"], r["value"]) for r in beside] == [
        ("learner, before", "10", s, v) for s, v in enumerate([1.0, 2.0, 3.0])
    ]
    assert duels([*now, *beside], "learner").splitlines()[-1] == "| learner, before | 1 | 0 | 0 |"


def test_figures_of_something_else_are_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "figures.csv"
    with pytest.raises(ModelError, match="cannot be read"):
        before(path, figures("learner", 10, [1.0]))
    for text in ("", "a,b\n1,2\n", "points,method,metric,0\n10,learner,loss,1,2\n"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ModelError, match=r"figures\.csv of"):
            before(path, figures("learner", 10, [1.0]))
    keep(figures("learner", 20, [1.0]), SCORES, path)
    with pytest.raises(ModelError, match="no draw of a setting that was run"):
        before(path, figures("learner", 10, [1.0]))


def test_figures_from_elsewhere_count_but_for_what_was_run_here(tmp_path: Path) -> None:
    path = tmp_path / "figures.csv"
    here = [r | {"seed": 1} for r in figures("learner", 10, [2.5])]
    with pytest.raises(ModelError, match="cannot be read"):
        elsewhere(path, here)
    keep([*figures("learner", 10, [1.0, 2.0, 3.0]), *figures("other", 10, [5.0])], SCORES, path)
    found = [*here, *elsewhere(path, here)]
    assert sorted((r["method"], r["seed"], r["value"]) for r in found) == [
        ("learner", 0, 1.0), ("learner", 1, 2.5), ("learner", 2, 3.0), ("other", 0, 5.0)
    ]  # fmt: skip
    assert "| 10 | 2.167 ± 0.6 (3) | 5 (1) |" in table(found)
    assert len(elsewhere(path, [])) == 4
    # They are kept with the others.
    keep(found, SCORES, path)
    assert path.read_text(encoding="utf-8").splitlines()[1:] == ["10,learner,loss,1,2.5,3", "10,other,loss,5,,"]
    with pytest.raises(ModelError, match=r"has settings by \['points'\], and this benchmark by \['size'\]"):
        elsewhere(path, [{"size" if name == "points" else name: value for name, value in here[0].items()}])
