"""A course: problems that share their parameters and are learned together.

The problems differ in steps (a family of grids) or guidance (a range of scales). They take turns,
one iteration each, and each counts by its loss over its loss at the start.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ld3.parameters import Parameters, Values
from ld3.problem import Problem, Student


@dataclass(frozen=True)
class Course:
    """Problems, the parameters they share, and their values at the start."""

    problems: tuple[Problem, ...]
    parameters: Parameters
    start: Values
    evaluations: int = 0  # spent on finding the start
    passes: int = 0


@dataclass(frozen=True)
class Task:
    """A student with one step count."""

    student: Student
    steps: int
    scale: float = 1.0  # of its losses


def make_tasks(problems: Sequence[Problem]) -> list[Task]:
    """One task per problem; problems that differ only in steps share a student."""
    students: dict[tuple[int, int, float], Student] = {}
    tasks = []
    for problem in problems:
        key = (id(problem.train), id(problem.valid), problem.guidance)
        if key not in students:
            students[key] = Student(problem)
        tasks.append(Task(students[key], problem.steps))
    return tasks


def cost(tasks: Iterable[Task]) -> tuple[int, int]:
    """Evaluations of the students so far, and passes: with guidance, most evaluations are two."""
    students = {task.student for task in tasks}
    return sum(s.evaluations for s in students), sum(s.passes for s in students)
