//! The help of every command: a line for each flag, on one screen, with examples that the program
//! reads.

use std::path::Path;
use std::process::Command as Process;

use crate::alone;
use clap::Command;
use rdmaprep::cli::{self, Cli};
use serde_json::json;
use testkit::{Container, Host, run};

/// Every command that the help of another one shows, by its whole name.
fn shown() -> Vec<(String, Command)> {
    fn below(command: &Command, name: &str, all: &mut Vec<(String, Command)>) {
        all.push((name.to_owned(), command.clone().bin_name(name)));
        for sub in command
            .get_subcommands()
            .filter(|c| !c.is_hide_set() && c.get_name() != "help")
        {
            below(sub, &format!("{name} {}", sub.get_name()), all);
        }
    }
    let (mut command, mut all) = (cli::command(), Vec::new());
    command.build();
    below(&command, "rdmaprep", &mut all);
    assert!(all.len() > 20);
    all
}

#[test]
fn help_of_every_command_fits_one_screen() {
    let mut wrong = Vec::new();
    for (name, mut command) in shown() {
        let text = command.render_help().to_string();
        let wide = text
            .lines()
            .filter(|line| line.chars().count() > 100)
            .map(|line| format!("{name}: too wide: {line}"));
        wrong.extend(wide);
        let lines = text.lines().count();
        if lines > 60 && name != "rdmaprep prepare" {
            wrong.push(format!("{name}: {lines} lines"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn help_has_one_line_for_each_flag_and_command() {
    let mut wrong = Vec::new();
    for (name, mut command) in shown() {
        let text = command.render_help().to_string();
        for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
            let help = arg.get_help().unwrap().to_string();
            let flag = arg
                .get_long()
                .map_or_else(|| arg.to_string(), |long| format!("--{long}"));
            let is_row = |line: &&str| {
                line.trim_start().starts_with(&flag) || line.contains(&format!(", {flag} "))
            };
            if !text
                .lines()
                .filter(is_row)
                .any(|line| line.ends_with(&help))
            {
                wrong.push(format!("{name} {flag}: {help}"));
            }
            wrong.extend(
                unnamed_values(arg).map(|value| format!("{name} {flag}: no value {value}")),
            );
        }
        let below = command.get_subcommands().filter(|c| !c.is_hide_set());
        for sub in below.filter(|c| c.get_name() != "help") {
            let about = sub.get_about().unwrap().to_string();
            if !text
                .lines()
                .any(|line| line.trim_start().starts_with(sub.get_name()) && line.ends_with(&about))
            {
                wrong.push(format!("{name} {}: {about}", sub.get_name()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Values that a flag takes, and its help does not name.
fn unnamed_values(arg: &clap::Arg) -> impl Iterator<Item = String> {
    let help = arg.get_help().unwrap().to_string();
    let values = if arg.get_action().takes_values() {
        arg.get_possible_values()
    } else {
        Vec::new()
    };
    let names: Vec<String> = values
        .iter()
        .map(|value| value.get_name().to_owned())
        .collect();
    names.into_iter().filter(move |name| !help.contains(name))
}

#[test]
fn every_command_is_in_one_group_of_the_list() {
    let command = cli::command();
    let mut grouped: Vec<&str> = Vec::new();
    for (_, names) in cli::GROUPS {
        grouped.extend(names);
    }
    let shown = command.get_subcommands().filter(|c| !c.is_hide_set());
    let mut names: Vec<&str> = shown.map(Command::get_name).collect();
    if !names.contains(&"help") {
        names.push("help");
    }
    names.sort_unstable();
    grouped.sort_unstable();
    assert_eq!(grouped, names);
}

#[test]
fn short_help_leaves_out_what_few_need() {
    let mut shortened = Vec::new();
    for (name, mut command) in shown() {
        let long = command.render_help().to_string().lines().count();
        let words: Vec<&str> = name.split(' ').chain(["-h"]).collect();
        // What is behind `runtime` is for another program.
        let Err(short) = Cli::read(&words) else {
            assert_eq!(name, "rdmaprep runtime");
            continue;
        };
        let short = short.to_string().lines().count();
        assert!(short <= 54, "{name}: {short} lines");
        if short < long {
            shortened.push(name);
        }
    }
    for name in ["rdmaprep", "rdmaprep prepare", "rdmaprep doctor"] {
        assert!(shortened.iter().any(|n| n == name), "{name}: {shortened:?}");
    }
}

#[test]
fn what_is_misspelt_is_named_with_what_may_be_meant() {
    for (line, said) in [
        ("--iface r0", "there is no --iface; see --help"),
        (
            "prepare --iface r0",
            "there is no --iface; did you mean --ifaces?",
        ),
        (
            "--ifaces r0",
            "there is no --ifaces; did you mean `rdmaprep prepare --ifaces`?",
        ),
        ("doctr", "there is no command doctr; did you mean doctor?"),
        (
            "completions bash",
            "there is no command completions; did you mean completion?",
        ),
        ("plan lst", "there is no command lst; did you mean list?"),
        ("xyzzy", "there is no command xyzzy; see --help"),
    ] {
        let words = std::iter::once("rdmaprep").chain(line.split(' '));
        let error = Cli::read(words).unwrap_err();
        assert_eq!(cli::complaint(&error).as_deref(), Some(said), "{line}");
    }
}

/// As bash calls the function of the script.
fn completed(host: &Host, words: &[&str]) -> String {
    let place = words.len() - 1;
    let (current, before) = (words[place], words[place - 1]);
    let line = format!(
        "source <(rdmaprep completion bash)\nCOMP_WORDS=({})\nCOMP_CWORD={place}\n\
        _rdmaprep rdmaprep '{current}' {before}\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words.join(" ").replace("''", "\\'\\'")
    );
    let program = Path::new(env!("CARGO_BIN_EXE_rdmaprep")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let mut bash = Process::new("bash");
    bash.args(["-c", &line]).env("PATH", path);
    bash.env("RDMAPREP_RUN_DIR", &host.run);
    run(&mut bash, "").ok().out
}

#[test]
fn completions_know_plans_and_holders() {
    alone(|host| {
        host.rails(1);
        for plan in ["train", "trial", "other"] {
            let prepare = ["prepare", "--plan", plan, "--ifaces", "r0"];
            host.rdmaprep(&prepare).ok();
        }
        assert_eq!(
            completed(host, &["rdmaprep", "prepare", "--plan", "tr"]),
            "train\ntrial\n"
        );
        let shown = completed(host, &["rdmaprep", "plan", "show", "ot"]);
        assert_eq!(shown, "other\n");
        let container = Container::new("job-1").annotated(json!({"rdmaprep.io/plan": "train"}));
        container.create(host).ok();
        assert_eq!(completed(host, &["rdmaprep", "restore", "job"]), "job-1\n");
        assert_eq!(
            completed(host, &["rdmaprep", "env", "--container", "j"]),
            "job-1\n"
        );
        host.rdmaprep(&["restore", "--all"]).ok();
        assert_eq!(completed(host, &["rdmaprep", "restore", "job"]), "\n");
        for (shell, asks) in [("zsh", 3), ("fish", 3)] {
            let script = host.rdmaprep(&["completion", shell]).ok().out;
            assert!(script.matches("--words plans").count() > asks, "{script}");
            assert!(script.matches("--words holders").count() > 1, "{script}");
        }
        host.rdmaprep(&["completion", "csh"])
            .fails(2, &["csh", "fish"]);
    });
}

#[test]
fn examples_in_help_are_read_by_the_program() {
    let mut without = Vec::new();
    for (name, command) in shown() {
        let text = command.get_after_help().map(ToString::to_string);
        let text = text.unwrap_or_default();
        let Some((_, examples)) = text.split_once("Examples:\n") else {
            if !command.has_subcommands() {
                without.push(name);
            }
            continue;
        };
        for line in examples.lines().take_while(|line| !line.is_empty()) {
            let words: Vec<String> = quoted_words(line.trim());
            assert!(words.join(" ").starts_with(&name), "{name}: {line}");
            Cli::read(&words).unwrap_or_else(|e| panic!("{line}: {e}"));
        }
    }
    // Those that a person calls have some.
    let (_, of_engines) = cli::GROUPS[3];
    without.retain(|name| {
        let mut words = name.split(' ').skip(1);
        words.next().is_some_and(|word| !of_engines.contains(&word))
    });
    assert_eq!(without, [""; 0]);
}

/// A shell's words: what quotes hold is one.
fn quoted_words(line: &str) -> Vec<String> {
    let word = regex::Regex::new(r#"(?:[^\s"]|"[^"]*")+"#).unwrap();
    word.find_iter(line)
        .map(|word| word.as_str().replace('"', ""))
        .collect()
}

#[test]
fn names_of_before_the_first_release_are_gone() {
    for old in [
        "check bootstrap --listen",
        "peers --watch",
        "topo --xml",
        "topo --svg -",
        "topo --exec true",
    ] {
        let said = Cli::read(format!("rdmaprep {old}").split(' '));
        assert!(said.is_err(), "{old}");
    }
}
