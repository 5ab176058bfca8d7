//! The help of every command: a line for each flag, on one screen, with examples that the program
//! reads.

use clap::Command;
use rdmaprep::cli::{self, Cli};

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
        for sub in command.get_subcommands().filter(|c| !c.is_hide_set()) {
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
fn examples_in_help_are_read_by_the_program() {
    let mut with_examples = Vec::new();
    for (name, command) in shown() {
        let Some(text) = command.get_after_help().map(ToString::to_string) else {
            continue;
        };
        let Some((_, examples)) = text.split_once("Examples:\n") else {
            continue;
        };
        for line in examples.lines().take_while(|line| !line.is_empty()) {
            let words: Vec<String> = quoted_words(line.trim());
            assert!(words.join(" ").starts_with(&name), "{name}: {line}");
            Cli::read(&words).unwrap_or_else(|e| panic!("{line}: {e}"));
        }
        with_examples.push(name);
    }
    for name in [
        "prepare",
        "env",
        "restore",
        "status",
        "nccl explain",
        "doctor",
        "install",
    ] {
        assert!(
            with_examples.contains(&format!("rdmaprep {name}")),
            "{name}: {with_examples:?}"
        );
    }
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
