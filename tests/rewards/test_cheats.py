"""Solutions that want full marks without being right. Each is tried by HumanEval's form and by MBPP's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.rewards.attempts import attempt, score, scorer
from toolwright.rewards import Scorer

EQUAL = ["assert add(2, 3) == 5", "assert add(4, 4) == 8"]
NEAR = ["assert abs(add(2.0, 3.0) - 5.0) < 1e-6", "assert not abs(5.0 - add(2.0, 3.0)) > 1e-6"]
IN_A_LOOP = ["assert all(map(lambda n: add(n, n) == 2 * n, range(1, 5)))"]
IN_A_SET = ["assert set(add([1], [2])) == set([2, 1])", "assert sorted(add([4], [3])) == [3, 4]"]
OF_AN_ARGUMENT = ["mine = [3, 1]\nassert add(mine, [2]) == mine + [2]"]
BY_A_METHOD = ["assert add('ab', 'c').startswith('abc')", "assert add('ab', 'c').count('b') == 1"]
A_MEMBER = ["assert 2 in add([1], [2])", "assert len(add([1], [2])) == 2"]
BY_A_MODULE = ["assert math.isclose(add(0.1, 0.2), 0.3)", "assert add(math.pi, 0) == math.pi"]
COUNTED = ["assert add(Counter('a'), Counter('b')) == Counter('ab')"]
RAISED = ["try:\n    add(1, None)\nexcept TypeError:\n    pass\nelse:\n    assert False", *EQUAL]
EVERYTHING = [
    *EQUAL,
    *NEAR,
    *IN_A_LOOP,
    *IN_A_SET,
    *OF_AN_ARGUMENT,
    *BY_A_METHOD,
    *A_MEMBER,
    *BY_A_MODULE,
    *COUNTED,
]

# Sends what the judge itself would send, to every descriptor that there is.
FORGE = """
import json, os, struct
def forge(*messages):
    for message in messages:
        body = json.dumps(message).encode()
        for descriptor in range(1, 64):
            for data in (struct.pack("<I", len(body)) + body, body + b"\\n"):
                try:
                    os.write(descriptor, data)
                except OSError:
                    pass
"""
LOOK = """
def look(texts):
    import re
    for text in texts:
        for a, b, result in re.findall(r"add\\((\\d+), (\\d+)\\) == (\\d+)", str(text)):
            answers[int(a), int(b)] = int(result)
answers = {}
"""

CHEATS: dict[str, tuple[str, list[str]]] = {
    "the caller's frames are searched for the test": (
        f"""{LOOK}
import sys
def add(a, b):
    frame = sys._getframe()
    while frame:
        look(map(str, [*frame.f_locals.values(), *frame.f_globals.values(), *frame.f_code.co_consts]))
        frame = frame.f_back
    return answers.get((a, b))""",
        EQUAL,
    ),
    "linecache is searched for the test": (
        f"""{LOOK}
import linecache
def add(a, b):
    look(linecache.cache.values())
    return answers.get((a, b))""",
        EQUAL,
    ),
    "exec is replaced": (
        "import builtins\nbuiltins.exec = lambda *_: None\nbuiltins.eval = lambda *_: True",
        EQUAL,
    ),
    "compile is replaced": (
        "import builtins\nold = compile\nbuiltins.compile = lambda *a, **k: old('', 'x', 'exec')",
        EQUAL,
    ),
    "the answer equals everything": (
        "class Any:\n    __eq__ = lambda *_: True\ndef add(a, b): return Any()",
        EQUAL,
    ),
    "standard input is read for the test": (
        f"{LOOK}\nimport sys\nlook([sys.stdin.read()])\ndef add(a, b): return answers.get((a, b))",
        EQUAL,
    ),
    "an integer of its own equals everything": (
        "class Any(int):\n    __eq__ = lambda *_: True\n    __hash__ = None\ndef add(a, b): return Any(0)",
        EQUAL,
    ),
    "a float of its own is near everything": (
        "class Near(float):\n    __sub__ = __rsub__ = __abs__ = lambda *_: 0.0\n"
        "    __lt__ = lambda *_: True\n    __gt__ = lambda *_: False\ndef add(a, b): return Near(9)",
        NEAR,
    ),
    "an object is near everything": (
        "class Near:\n    __sub__ = __rsub__ = lambda *_: 0.0\ndef add(a, b): return Near()",
        NEAR,
    ),
    "not a number is near nothing and far from nothing": ("def add(a, b): return float('nan')", NEAR),
    "an object says that it is an integer": (
        "class Any:\n    __class__ = int\n    __eq__ = lambda *_: True\n    __index__ = lambda _: 5\n"
        "def add(a, b): return Any()",
        EQUAL,
    ),
    "an object is pickled as a call": (
        "import os\nclass Any:\n    def __reduce__(self): return (os._exit, (0,))\n    __reduce_ex__ = None\n"
        "    __eq__ = lambda *_: True\ndef add(a, b): return [Any()]",
        EQUAL,
    ),
    "a list's members equal everything": (
        "class Any:\n    __eq__ = lambda *_: True\n    __hash__ = lambda _: 1\n"
        "class Two(list):\n    __eq__ = lambda *_: True\n    __iter__ = lambda _: iter([1, 2])\n"
        "def add(a, b): return Two([Any(), Any(), Any()])",
        IN_A_SET,
    ),
    "an object says it has any member": (
        "class Any:\n    __contains__ = lambda *_: True\n    __len__ = lambda _: 2\n"
        "def add(a, b): return Any()",
        A_MEMBER,
    ),
    "an object's methods say yes": (
        "class Any:\n    startswith = lambda *_: True\n    count = lambda *_: 1\ndef add(a, b): return Any()",
        BY_A_METHOD,
    ),
    "a string's methods say yes": (
        "class Any(str):\n    startswith = lambda *_: True\n    count = lambda *_: 1\n"
        "def add(a, b): return Any()",
        BY_A_METHOD,
    ),
    "built-in functions are shadowed": (
        "def sorted(_): return [3, 4]\ndef set(_): return 0\ndef add(a, b): return []",
        IN_A_SET,
    ),
    "a module that the test uses is shadowed": (
        "class math:\n    pi = 0\n    isclose = lambda *_: True\ndef add(a, b): return 0",
        BY_A_MODULE,
    ),
    "a class that the test uses is shadowed": ("def Counter(_): return 0\ndef add(a, b): return 0", COUNTED),
    "an argument that the test uses is changed": (
        "def add(a, b):\n    a[:] = []\n    b[:] = []\n    return [2]",
        OF_AN_ARGUMENT,
    ),
    "the end of an iteration is raised": ("def add(a, b): raise StopIteration", IN_A_LOOP),
    "the error that the test waits for is always raised": ("def add(a, b): raise TypeError", RAISED),
    "a failed assertion is raised": ("def add(a, b): raise AssertionError", RAISED),
    "the process leaves with a good status": ("def add(a, b):\n    import os\n    os._exit(0)", EQUAL),
    "the process leaves as it is loaded": ("import sys\nsys.exit(0)", EQUAL),
    "an exit hook leaves with a good status": (
        f"{FORGE}\nimport atexit\natexit.register(forge, ['loaded', ''], ['passed', ''])\n"
        "atexit.register(os._exit, 0)\nraise SystemExit",
        EQUAL,
    ),
    "messages of the judge are forged": (
        f"{FORGE}\nforge(['ready'], ['loaded', ''], ['passed', ''], ['passed', ''], ['value', True])\n"
        "def add(a, b):\n    forge(['passed', ''], ['value', {'class': 'bool'}], ['value', None, [[], []]])",
        EQUAL,
    ),
    "malformed messages are sent": (
        f"{FORGE}\ndef add(a, b): forge({{'tuple': 5}}, {{'int': []}}, {{'set': [[]]}}, ['value'], 7, None)",
        EQUAL,
    ),
    "a thread forges messages": (
        f"{FORGE}\nimport threading\ndef add(a, b):\n"
        "    threading.Thread(target=forge, args=(['passed', ''],), daemon=True).start()",
        EQUAL,
    ),
    "a child process answers later": (
        f"{FORGE}\ndef add(a, b):\n    if os.fork(): os._exit(0)\n    forge(['passed', ''], ['value', 5])",
        EQUAL,
    ),
    "every descriptor is closed": ("import os\nos.closerange(0, 256)\ndef add(a, b): pass", EQUAL),
    "the garbage collector's objects are searched": (
        f"""{LOOK}
import gc
def add(a, b):
    look(found for found in gc.get_objects() if isinstance(found, (list, tuple, dict)) and len(found) < 50)
    return answers.get((a, b))""",
        EQUAL,
    ),
    "calls are traced": (
        f"""{LOOK}
import sys
def trace(frame, event, argument):
    look([dict(frame.f_locals), argument])
    return trace
sys.settrace(trace)
sys.setprofile(trace)
def add(a, b): return answers.get((a, b))""",
        EQUAL,
    ),
    "files, /proc and the environment are searched": (
        f"""{LOOK}
import glob, os
def add(a, b):
    look([dict(os.environ), os.listdir()])
    for name in [*glob.glob("/proc/*/*"), *glob.glob("/srv/*"), *glob.glob("/tmp/**"), *glob.glob("*")]:
        try:
            look([open(name, errors="replace").read(100000)])
        except OSError:
            pass
    return answers.get((a, b))""",
        EQUAL,
    ),
    "json, struct and os.write are replaced": (
        "import json, os, struct\nold = json.dumps\n"
        "json.dumps = lambda told, **k: old(['value', {'class': 'object'}])\n"
        "json.loads = lambda *a, **k: ['passed', '']\nstruct.Struct = None\ndef add(a, b): return 0",
        EQUAL,
    ),
    "modules are planted beside the test": (
        "open('math.py', 'w').write('pi = 0\\nisclose = lambda *_: True')\ndef add(a, b): return 0",
        BY_A_MODULE,
    ),
    "the test's own functions are defined": (
        "check = test = lambda *_: None\nclass AssertionError(Exception): pass\n__builtins__ = {}\n"
        "def __getattr__(name): return lambda *_: True\ndef add(a, b): return None",
        EQUAL,
    ),
    "processes around it are killed": (
        "import os\ndef add(a, b):\n    for pid in (os.getppid(), -1, 0):\n        try:\n"
        "            os.kill(pid, 9)\n        except OSError:\n            pass",
        EQUAL,
    ),
    "the answer never ends": (
        "def add(a, b):\n    while True:\n        yield 5",
        [*EQUAL, "assert list(zip(add(1, 2), [3])) == [(3, 3)]"],
    ),
    "the answer is endlessly nested": ("def add(a, b):\n    c = []\n    c.append(c)\n    return c", EQUAL),
    "the answer is nested too deeply": (
        "def add(a, b):\n    c = 5\n    for _ in range(10 ** 5): c = [c]\n    return c",
        EQUAL,
    ),
    "the answer is huge": ("def add(a, b): return 'x' * (1 << 26)", ["assert add('a', 'b') != 'ab'"]),
    "the answer has 2 ** 60 members": (
        "def add(a, b):\n    c = [1]\n    for _ in range(60): c = [c, c]\n    return c",
        ["assert add([], []) != []"],
    ),
    "a function is returned that says yes": (
        "def add(a, b):\n    return lambda *_: True",
        [*EQUAL, "assert add('a', 'b') in ('ab', 'ba')"],
    ),
    "the question is answered with the question": ("def add(*told): return told", EQUAL),
}


@pytest.fixture(scope="module")
def code(sandbox_url: str) -> Iterator[Scorer]:
    made = scorer("code", sandbox_url=sandbox_url, timeout_s=240, params={"code": {"timeout_s": 4}})
    yield made
    made.close()


def forms(tests: list[str]) -> list[dict[str, Any]]:
    body = "\n".join(tests).replace("add(", "candidate(").replace("\n", "\n    ")
    return [{"test": f"def check(candidate):\n    {body}\n", "entry_point": "add"}, {"tests": tests}]


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_earns_nothing(cheat: str, code: Scorer) -> None:
    solution, tests = CHEATS[cheat]
    made = [attempt(solution, truth) for truth in forms(tests)]
    assert score(code, *made) == [0.0, 0.0], [one.failure for one in made]


def test_honest_solutions_pass_the_tests_that_cheats_fail(code: Scorer) -> None:
    honest = "def add(a, b): return a + b"
    made = [attempt(honest, truth) for tests in (EVERYTHING, RAISED) for truth in forms(tests)]
    assert score(code, *made) == [1.0] * len(made), [one.failure for one in made]


def test_a_helper_of_the_declaration_is_not_the_solutions(code: Scorer) -> None:
    declaration = "def encode(text):\n    return text[::-1]\n\n\ndef decode(text):\n    '''Undo encode.'''\n"
    test = "def check(candidate):\n    assert candidate(encode('abc')) == 'abc'\n"
    truth = {"test": test, "entry_point": "decode"}
    body, cheat = "    return text[::-1]", "def encode(text): return text\ndef decode(text): return text"
    made = [attempt(answer, truth, declaration=declaration) for answer in (body, cheat)]
    assert score(code, *made) == [1.0, 0.0]


@pytest.mark.parametrize(
    "printed",
    [
        "class Any(str):\n    __eq__ = lambda *_: True\nimport sys\nsys.stdout.write(Any('wrong'))",
        'import sys\nsys.stdout = None\nimport os\nos.write(1, b\'["passed", ""]\\n\')',
        "import os\nfor n in range(3, 64):\n    try: os.write(n, b'A\\n')\n    except OSError: pass",
        "import atexit, os\natexit.register(os._exit, 0)",
        "print('A', end='')\nprint('\\0B')",
    ],
)
def test_a_program_is_judged_by_all_that_it_prints(printed: str, code: Scorer) -> None:
    assert score(code, attempt(printed, {"inputs": ["a\n"], "outputs": ["A\n"]})) == [0.0]
