"""The program of a run is the one it was started with: in every process, whatever becomes of the user's files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ferry.contract.errors import SpecRefused
from ferry.contract.program_text import without_text
from ferry.contract.run_directory import PROGRAMS
from ferry.process.classes import class_of
from ferry.system import user_module
from ferry.system.user_module import MODULES
from ferry_operator.local import program

PIPELINE = """# the first text
import json, pyarrow
import helper
from package import inner
from package.deep import other as renamed

def price(n):
    from late import LATE
    return n / 0
"""
FILES = {
    "job.py": PIPELINE,
    "helper.py": "import package.deep.relative\nHERE = __file__\n",
    "late.py": "LATE = 1\n",
    "json.py": "raise NameError('of the user')\n",
    "package/__init__.py": "",
    "package/inner.py": "from . import beside\n",
    "package/beside.py": "WORD = 'first'\n",
    "package/deep/__init__.py": "",
    "package/deep/other.py": "",
    "package/deep/relative.py": "from .. import beside\nWORD = beside.WORD\n",
    "package/unused.py": "",
}

LOAD = """
import importlib, json, sys, traceback
from ferry.system import user_module
made = user_module.load(*json.loads(sys.argv[1]))
try:
    made.price(1)
except ZeroDivisionError:
    deep = next(name for name in sys.modules if name.endswith("package.deep.relative"))
    unused = importlib.import_module(deep.replace("deep.relative", "unused"))  # as another module of the program may
    print(made.__doc__, made.__file__, made.helper.HERE, sys.modules[deep].WORD, unused.__file__)
    print(traceback.format_exc())
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / "user" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "user" / name).write_text(text)
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "user")
    return tmp_path


def loaded(folder: Path, *arguments: str | None) -> str:
    """What another process has of the program."""
    command = [sys.executable, "-c", LOAD, json.dumps(arguments)]
    surroundings = {**os.environ, "PYTHONSAFEPATH": "1"}  # as all processes of a run have it
    done = subprocess.run(command, cwd=folder / "user", env=surroundings, capture_output=True, text=True)
    return done.stdout + done.stderr


def spoil(folder: Path) -> None:
    """Half-saved, all of it."""
    for name in FILES:
        if name != "package/unused.py":
            (folder / "user" / name).write_text("this is (no program\n")


@pytest.mark.parametrize("as_module", [False, True])
def test_what_is_edited_later_harms_nothing(folder: Path, as_module: bool) -> None:
    module, file = ("job", None) if as_module else (None, str(folder / "user" / "job.py"))
    copied = program.copy(module, file, folder / "run")
    before = loaded(folder, module, file, copied)
    spoil(folder)
    assert loaded(folder, module, file, copied) == before
    user = folder / "user"
    assert f"None {user}/job.py {user}/helper.py first {user}/package/unused.py\n" in before
    assert f'File "{user}/job.py", line 9, in price\n    return n / 0\n' in before, "of the text that runs"
    assert "cannot be imported" in loaded(folder, module, file, None)


def test_the_imports_of_the_user_are_copied_and_those_of_packages_are_not(folder: Path) -> None:
    copied = Path(program.copy(None, "job.py", folder / "run"))
    found = json.loads((copied / MODULES).read_text())
    names = {"helper", "late", "package", "package.inner", "package.beside", "package.deep", "package.deep.other"}
    assert {one["module"] for one in found} == {None, *names, "package.deep.relative"}
    assert len(list(copied.iterdir())) == len(found) + 1


def test_modules_beside_the_pipeline_are_found_from_any_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    file = str(folder / "user" / "job.py")
    (folder / "user" / "job.py").write_text(f"{PIPELINE}\nimport package.unused\n")
    copied = program.copy(None, file, folder / "run")
    command = [sys.executable, "-c", LOAD, json.dumps([None, file, copied])]
    done = subprocess.run(command, cwd=folder / "elsewhere", capture_output=True, text=True)
    assert f"{file} {folder / 'user' / 'helper.py'} first " in done.stdout, done.stderr


def test_the_next_run_takes_the_new_text(folder: Path) -> None:
    for text in (PIPELINE, "syntax (", "import helper\n"):
        (folder / "user" / "job.py").write_text(text)
        copied = Path(program.copy(None, "job.py", folder / "run"))
        (found,) = (one for one in json.loads((copied / MODULES).read_text()) if one["module"] is None)
        assert (copied / found["copy"]).read_text() == text
    assert len(list((folder / "run" / PROGRAMS).iterdir())) == 3


def test_a_file_that_cannot_be_read_is_refused(folder: Path) -> None:
    with pytest.raises(SpecRefused, match=r"none\.py: No such file"):
        program.copy(None, "none.py", folder / "run")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import json\nimport polarz\n", "No module named 'polarz' (job.py:2: \"import polarz\")"),
        ("x = (\n", '(job.py:1: "x = (")'),
        ("import sys\nsys.exit(3)\n", 'SystemExit: 3 (job.py:2: "sys.exit(3)")'),
        ("import helper\n", '(helper.py:1: "1 / 0")'),
    ],
)
def test_a_program_that_cannot_be_imported_is_refused_with_the_place(folder: Path, text: str, words: str) -> None:
    (folder / "user" / "job.py").write_text(text)
    (folder / "user" / "helper.py").write_text("1 / 0\n")
    file = str(folder / "user" / "job.py")
    assert words in loaded(folder, None, file, program.copy(None, file, folder / "run"))


TWO = """
import json, sys, pickle
from ferry.spark import compile
from pyspark import cloudpickle
made = [compile.load(None, "job.py", copied) for copied in json.loads(sys.argv[1])]
print([(one.lazily(), one.top.WORD, one.package.inner.WORD, one.renamed.WORD, one.WORD) for one in made])
pickled = cloudpickle.dumps([(one.lazily, one.top.Thing()) for one in made])
print(pickled.hex())
"""

TASK = """
import sys
from ferry.system import user_module
user_module.ProgramCopy.of(sys.argv[1]).install()
from pyspark import cloudpickle
print([(lazily(), type(thing).__module__ == "helper", thing.word()) for lazily, thing in cloudpickle.loads(bytes.fromhex(sys.argv[2]))])
"""


def test_two_programs_of_one_process_share_no_module(folder: Path) -> None:
    """Also not in imports within functions, nor in a task that gets a function of either program."""
    copies = []
    for word in ("old", "new"):
        (folder / "user" / "helper.py").write_text(
            f"WORD = {word!r}\nclass Thing:\n    def word(self):\n        return WORD\n"
        )
        (folder / "user" / "package" / "inner.py").write_text(f"WORD = {word!r}\n")
        (folder / "user" / "job.py").write_text(
            "import package.inner, helper as top\nfrom package import inner as renamed\nfrom helper import *\n"
            "def lazily():\n    import helper\n    import package.inner\n    return helper.WORD + package.inner.WORD\n"
        )
        copies.append(program.copy(None, "job.py", folder / "run"))
    done = subprocess.run(
        [sys.executable, "-P", "-c", TWO, json.dumps(copies)], cwd=folder / "user", capture_output=True, text=True
    )
    shown, pickled = done.stdout.splitlines() if done.returncode == 0 else (done.stderr, "")
    assert shown == "[('oldold', 'old', 'old', 'old', 'old'), ('newnew', 'new', 'new', 'new', 'new')]"
    task = subprocess.run(
        [sys.executable, "-P", "-c", TASK, copies[0], pickled], cwd=folder, capture_output=True, text=True
    )
    assert task.stdout == "[('oldold', False, 'old'), ('newnew', False, 'new')]\n", task.stderr


def test_the_same_text_in_another_folder_reads_the_files_beside_it(folder: Path) -> None:
    """Also the text of a module beside the pipeline. The names of classes differ in the hash alone, as after an edit."""
    (folder / "user" / "job.py").write_text("import helper\nDATA = helper.DATA\nclass Rate: pass\n")
    read = "from pathlib import Path\nDATA = (Path(__file__).parent / 'rate.json').read_text()\n"
    (folder / "user" / "helper.py").write_text(read)
    (folder / "user" / "rate.json").write_text("1")
    shutil.copytree(folder / "user", folder / "v2")
    (folder / "v2" / "rate.json").write_text("2")
    copies = [
        (str(place / "job.py"), program.copy(None, str(place / "job.py"), folder / "run"))
        for place in (folder / "user", folder / "v2", folder / "user")
    ]
    assert copies[0] == copies[2] and len(list((folder / "run" / PROGRAMS).iterdir())) == 2
    code = (
        "import json, sys\nfrom ferry.system import user_module\n"
        "made = [user_module.load(None, *one) for one in json.loads(sys.argv[1])]\n"
        "print(json.dumps([[one.DATA, one.__file__, one.Rate.__module__] for one in made]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, json.dumps(copies)], cwd=folder, capture_output=True, text=True
    )
    shown = json.loads(done.stdout) if done.returncode == 0 else done.stderr
    assert [one[:2] for one in shown] == [["1", copies[0][0]], ["2", copies[1][0]], ["1", copies[0][0]]]
    assert len({one[2] for one in shown}) == 2 and {without_text(f"{one[2]}:Rate") for one in shown} == {":Rate"}


@pytest.mark.parametrize("is_copied", [True, False])
def test_a_thread_waits_for_a_module_that_another_thread_imports(tmp_path: Path, is_copied: bool) -> None:
    """An instance loads a program while its loop, or a rehearsal of another program, asks for a class."""
    file = tmp_path / "my jobs.v2.py"
    file.write_text(f"import time\ntime.sleep(0.5)\nCOPIED = {is_copied}\nclass Late: pass\n")
    pipeline: tuple[str | None, ...] = (None, str(file))
    if is_copied:
        pipeline = (
            *pipeline,
            str(user_module.ProgramCopy.write_text(tmp_path / "programs", str(file), file.read_bytes())),
        )
    began = set(sys.modules)
    with ThreadPoolExecutor(4) as pool:
        loads = [pool.submit(user_module.load, *pipeline) for _ in range(2)]
        while not (names := [name for name in set(sys.modules) - began if name.startswith("ferry_pipeline_my_jobs")]):
            assert not loads[0].done(), "the module is loaded under another name"
            time.sleep(0.001)
        classes = [pool.submit(class_of, f"{names[0]}:Late") for _ in range(2)]
        assert len({loaded.result() for loaded in loads}) == 1
        assert {each.result().__name__ for each in classes} == {"Late"}
    assert class_of(f"{names[0]}:Late").__module__ == names[0]


FOLDERS = """
import json, sys
from ferry.system import user_module
made = user_module.load(*json.loads(sys.argv[1]))
print(made.LEAST, made.top.LEAST, made.lazily(), sorted(one for one in sys.modules if one.startswith("rules")))
"""


def test_a_folder_of_helpers_needs_no_init(folder: Path) -> None:
    """Python imports it from the user's folder, too, as a namespace package; also one in another, or in a package."""
    helpers = {
        "rules/cents.py": "from rules.more.deep import LEAST\n",
        "rules/more/deep.py": "from package.loose import least\nLEAST = least.LEAST\n",
        "package/loose/least.py": "LEAST = 5\n",
        "rules/unused.py": "LEAST = 7\n",
        "job.py": "import importlib, rules.cents as top\nfrom rules.cents import LEAST\nfrom rules import more\n"
        "def lazily():\n    import rules\n"
        "    return importlib.import_module('.unused', rules.__name__).LEAST, more.deep.LEAST\n",
    }
    for name, text in helpers.items():
        (folder / "user" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "user" / name).write_text(text)
    copied = program.copy(None, "job.py", folder / "run")
    found = {one["module"] for one in json.loads((Path(copied) / MODULES).read_text())}
    assert found == {None, "rules.cents", "rules.more.deep", "package", "package.loose.least"}
    for name in ("rules/cents.py", "rules/more/deep.py", "package/loose/least.py"):
        (folder / "user" / name).write_text("this is (no program\n")
    command = [sys.executable, "-P", "-c", FOLDERS, json.dumps([None, "job.py", copied])]
    done = subprocess.run(command, cwd=folder / "user", capture_output=True, text=True)
    assert done.stdout == "5 5 (7, 5) []\n", done.stderr
