#!/usr/bin/env python3
"""The second try of scripts/test (scripts/again), with programs that only print what cargo, the guest and the hosts would."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

AGAIN = Path(__file__).resolve().parent.parent / "scripts/again"
# Fails, or passes where the folder `passes` has a file of the test's name.
ALONE = """#!/bin/sh
echo "$RDMAPREP_VM_SUITE $*" >> ran
for last; do :; done
name=$(echo "$last" | tr -dc 'a-z0-9_: -')
if [ ! -e "passes/$name" ]; then echo "0 passed, 1 failed"; exit 1; fi
case $* in *test*) echo 'test result: ok. 1 passed; 0 failed' ;; *) echo '1 passed, 0 failed' ;; esac
"""
SOURCE = "#[test]\nfn old_{}() {{}}\n"
CARGO = """   Compiling rdmaprep v0.1.0
     Running unittests src/lib.rs (target/debug/deps/nccl_rules-0f1e)

running 1 test
test a::old_passes ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s

     Running tests/kernel/main.rs (target/debug/deps/kernel-0f1e)

running 9 tests
test hook::old_0 ... FAILED

failures:

---- hook::old_0 stdout ----
    indented, but no name

failures:
{}
test result: FAILED. 8 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s

error: test failed, to rerun pass `--test kernel`
"""


class Again(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.at = Path(folder.name)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("RDMAPREP_")}
        self.git("init", "--quiet", "--initial-branch=other")
        self.write("tests/kernel.rs", "".join(SOURCE.format(i) for i in range(5)))
        self.write("tests/macros.rs", "attacks! { old_attack => 1 }\n")
        self.write("tests/vm/cases/10-runtimes.sh", "case_runc_starts() {\n}\n")
        self.write("tests/hosts/cases.py", "def networkd_rules(h):\n    pass\n")
        self.commit()
        self.write("tests/new.rs", "fn new_test() {}\nfn old_4() {}\n")
        self.commit()
        self.write("alone", ALONE)
        (self.at / "alone").chmod(0o755)
        (self.at / "passes").mkdir()

    def write(self, path, text):
        file = self.at / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def git(self, *words):
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *who, *words], cwd=self.at, env=self.env, check=True, stdout=subprocess.DEVNULL)

    def commit(self):
        self.git("add", "tests")
        self.git("commit", "--quiet", "--message=a")

    def again(self, *words, **env):
        command = ["python3", AGAIN, *words]
        done = subprocess.run(command, cwd=self.at, env={**self.env, **env}, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def collect(self, kind, log, *command, **env):
        self.write("log", log)
        return self.again("collect", kind, "log", "list", "--", *(command or ["./alone", "test"]), **env)

    def cargo(self, *names):
        self.assertEqual(self.collect("cargo", CARGO.format("".join(f"    {n}\n" for n in names)))[0], 0)

    def passes(self, *names):
        for name in names:
            self.write(f"passes/{name}", "")

    def ran(self):
        file = self.at / "ran"
        return file.read_text().splitlines() if file.exists() else []

    def test_reported_twice_runs_once(self):
        self.cargo("hook::old_0", "hook::old_0")
        self.passes("hook::old_0")
        code, said = self.again("run", "list")
        self.assertEqual(code, 0, said)
        self.assertTrue(said.endswith("flaky 1 (2 reports), failed 0\n"), said)
        self.assertEqual(len(self.ran()), 1)

    def test_passed_alone_is_flaky(self):
        self.cargo("hook::old_0", "hook::old_1")
        self.passes("hook::old_0", "hook::old_1")
        code, said = self.again("run", "list")
        self.assertEqual(code, 0, said)
        self.assertRegex(said, r"(?m)^flaky: --test kernel hook::old_0 \(\d+ s\)$")
        self.assertTrue(said.endswith("flaky 2 (2 reports), failed 0\n"), said)
        self.assertEqual(self.ran()[0], " test --test kernel -- --exact hook::old_0")

    def test_failed_again_is_failed(self):
        self.cargo("hook::old_0", "hook::old_1")
        self.passes("hook::old_1")
        code, said = self.again("run", "list")
        self.assertEqual(code, 1)
        self.assertIn("not flaky: --test kernel hook::old_0: it failed again", said)
        self.assertTrue(said.endswith("flaky 1 (1 reports), failed 1\n"), said)

    def test_three_are_the_most(self):
        for count, expected in ((3, 0), (4, 1)):
            (self.at / "list").unlink(missing_ok=True)
            names = [f"hook::old_{i}" for i in range(count)]
            self.cargo(*names)
            self.passes(*names)
            code, said = self.again("run", "list")
            self.assertEqual(code, expected, said)
        self.assertIn("4 tests are flaky; at most 3 may be", said)

    def test_a_test_of_the_change_has_no_second_try(self):
        # Committed, of a name that another test has, and not committed yet.
        self.write("tests/later.rs", "fn uncommitted() {}\n")
        names = ["a::new_test", "a::old_4", "a::uncommitted", "a::made_by_nothing"]
        self.cargo(*names)
        self.passes(*names)
        code, said = self.again("run", "list")
        self.assertEqual((code, self.ran()), (1, []), said)
        self.assertEqual(said.count("adds it, so no second try"), 4, said)

    def test_the_base_is_the_branch_or_what_is_named(self):
        self.cargo("a::new_test")
        self.passes("a::new_test")
        self.assertEqual(self.again("run", "list", RDMAPREP_BASE="HEAD")[0], 0)
        self.assertEqual(self.again("run", "list", RDMAPREP_BASE="nothing")[0], 1)
        # The first parent is not the base where a branch of two commits has left main.
        self.git("branch", "main", "HEAD^")
        self.git("commit", "--quiet", "--allow-empty", "--message=b")
        self.assertEqual(self.again("run", "list")[0], 1)
        self.git("checkout", "--quiet", "-B", "main")
        self.assertEqual(self.again("run", "list")[0], 0)

    def test_a_clone_of_one_commit_gives_no_second_try(self):
        self.git("checkout", "--quiet", "--orphan", "alone")
        self.git("commit", "--quiet", "--message=a")
        self.cargo("hook::old_0")
        self.passes("hook::old_0")
        code, said = self.again("run", "list")
        self.assertEqual((code, self.ran()), (1, []))
        self.assertIn("there is no commit to compare with", said)

    def test_a_test_that_a_macro_makes_is_known(self):
        self.cargo("tenant::old_attack")
        self.passes("tenant::old_attack")
        self.assertEqual(self.again("run", "list")[0], 0)

    def test_the_guest_and_the_hosts(self):
        guest = "ok 1 - 10-runtimes: crun starts (3 s)\nnot ok 2 - 10-runtimes: runc starts (9 s)\n    died\n1 passed, 1 failed\n"
        self.assertEqual(self.collect("guest", guest, "./alone", "/repo/tests/vm/all", "runc|crun", RDMAPREP_VM_SUITE="forky")[0], 0)
        hosts = "FAILED networkd-rules (trixie, 7 s): 2 rules\nare missing\nok networkd-static (trixie, 3 s)\n1 passed, 1 failed\n"
        self.assertEqual(self.collect("hosts", hosts, "./alone")[0], 0)
        self.passes("10-runtimes: runc starts", "networkd-rules")
        code, said = self.again("run", "list")
        self.assertEqual(code, 0, said)
        self.assertEqual(
            self.ran(),
            ["forky /repo/tests/vm/all ^10-runtimes: runc starts$", " --suite trixie ^networkd-rules$"],
        )

    def test_what_is_no_single_test_fails(self):
        died = "     Running tests/kernel/main.rs (target/debug/deps/kernel-0f1e)\n\nrunning 9 tests\n"
        for kind, log in (
            ("cargo", died),
            ("cargo", died + CARGO.format("    hook::old_0\n")),
            ("cargo", CARGO.format("")),
            ("cargo", "error: could not compile `rdmaprep` (lib)\n"),
            ("cargo", CARGO.format("    hook::old_0\n") + "error: could not compile `rdmaprep` (lib)\n"),
            ("cargo", ""),
            ("guest", "not ok 1 - 10-runtimes: runc starts (9 s)\n"),
            ("guest", ""),
            ("guest", "0 passed, 0 failed\n"),
            ("hosts", "ok networkd-rules (trixie, 7 s)\n"),
        ):
            code, said = self.collect(kind, log)
            self.assertEqual(code, 1, (kind, log, said))

    def test_a_second_try_that_runs_nothing_is_no_pass(self):
        self.write("alone", "#!/bin/sh\necho 'test result: ok. 0 passed; 0 failed'\n")
        self.cargo("hook::old_0")
        code, said = self.again("run", "list")
        self.assertEqual(code, 1, said)

    def test_nothing_failed(self):
        self.assertEqual(self.again("run", "list"), (0, "flaky 0 (0 reports), failed 0\n"))

    def test_targets_of_cargo(self):
        log = CARGO.format("    hook::old_0\n").replace("Running tests/kernel/main.rs (target/debug/deps/kernel", "{}")
        for running, target in (
            ("Running unittests src/lib.rs (target/debug/deps/nccl_rules", "-p nccl-rules --lib -- --exact"),
            ("Running unittests src/main.rs (target/debug/deps/rdmaprep", "-p rdmaprep --bin rdmaprep -- --exact"),
            ("Running tests/rtnl.rs (/t/debug/deps/rtnl", "--test rtnl -- --exact"),
        ):
            (self.at / "list").unlink(missing_ok=True)
            (self.at / "ran").unlink(missing_ok=True)
            self.assertEqual(self.collect("cargo", log.format(running))[0], 0)
            self.again("run", "list")
            self.assertEqual(self.ran(), [f" test {target} hook::old_0"])
        (self.at / "ran").unlink()
        (self.at / "list").unlink()
        self.collect("cargo", CARGO.format("    nldev::old_0\n"), "./alone", "test", "--locked", "--", "--ignored")
        self.again("run", "list")
        self.assertEqual(self.ran(), [" test --locked --test kernel -- --ignored --exact nldev::old_0"])


if __name__ == "__main__":
    unittest.main()
