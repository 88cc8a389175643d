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
    """What is learned, and where learning begins."""

    problems: tuple[Problem, ...]
    parameters: Parameters
    start: Values
    evaluations: int = 0  # spent on finding the start


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


def prepare(tasks: Iterable[Task]) -> None:
    """Evaluate what hard forcing needs once; students that did so are left alone."""
    for task in tasks:
        task.student.prepare()


def evaluations(tasks: Iterable[Task]) -> int:
    """Total cost of the students so far."""
    return sum(student.evaluations for student in {task.student for task in tasks})
