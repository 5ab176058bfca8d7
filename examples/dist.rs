//! Writes what a package has beside the program, from the command line's own types: completions and
//! manual pages.
//! `cargo run --example dist -- DIR`; scripts/package calls it.
#![allow(clippy::print_stderr, reason = "a tool for who builds packages")]

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::builder::Resettable;
use clap_mangen::Man;

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: dist DIR");
        return ExitCode::from(2);
    };
    let written = completions(&folder.join("completions"))
        .and_then(|()| manual(&folder.join("man")))
        .and_then(|()| config_page(&folder.join("man5")));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("dist: {e:#}");
            ExitCode::FAILURE
        }
    }
}

/// By the names under which the three shells look for them.
fn completions(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    for (shell, name) in [
        ("bash", "rdmaprep"),
        ("zsh", "_rdmaprep"),
        ("fish", "rdmaprep.fish"),
    ] {
        let text = rdmaprep::cli::script(shell).context(shell)?;
        fs::write(folder.join(name), text).with_context(|| format!("writing {name}"))?;
    }
    Ok(())
}

/// rdmaprep(1), and a page for each command: rdmaprep-prepare(1), rdmaprep-nccl-explain(1), ….
fn manual(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    let mut command = rdmaprep::cli::manual();
    command.build();
    page(folder, command, "rdmaprep")
}

fn page(folder: &Path, command: clap::Command, name: &str) -> Result<()> {
    for below in command
        .get_subcommands()
        .filter(|c| !c.is_hide_set() && c.get_name() != "help")
    {
        page(
            folder,
            below.clone(),
            &format!("{name}-{}", below.get_name()),
        )?;
    }
    let text = rendered(command, name).with_context(|| format!("rendering {name}"))?;
    fs::write(folder.join(format!("{name}.1")), text).with_context(|| format!("writing {name}.1"))
}

/// What each page ends with, beside what clap makes.
const EXIT_STATUS: &str = "0 if it is done; else rdmaprep(1) says what the number means.";
const FILES: [(&str, &str); 5] = [
    (
        "/etc/rdmaprep/config.toml",
        "what the host settles, see rdmaprep-config.toml(5)",
    ),
    (
        "/run/rdmaprep",
        "plans, records of NICs that are away, reports, the lock; until the next boot",
    ),
    ("/var/lib/rdmaprep", "what `rdmaprep install` edited"),
    ("/var/log/rdmaprep.log", "a line for each run of a hook"),
    ("/usr/share/doc/rdmaprep", "the pages that help names"),
];

fn rendered(command: clap::Command, name: &str) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let mut related: Vec<String> = command
        .get_subcommands()
        .filter(|c| !c.is_hide_set() && c.get_name() != "help")
        .map(|c| format!("{name}-{}(1)", c.get_name()))
        .collect();
    if let Some((above, _)) = name.rsplit_once('-').filter(|_| related.is_empty()) {
        related.push(format!("{above}(1)"));
    }
    related.push("rdmaprep-config.toml(5)".to_owned());
    // clap keeps names for ever: a few dozen, in a program that ends at once.
    let name: &'static str = Box::leak(name.to_owned().into_boxed_str());
    let after = command.get_after_help().map(ToString::to_string);
    let (after, is_root) = (after.unwrap_or_default(), name == "rdmaprep");
    let page = Man::new(command.name(name).after_help(Resettable::Reset)).date("");
    page.render(&mut text)?;
    let mut section = |title: &str, lines: &str| writeln!(text, ".SH \"{title}\"\n{lines}");
    let (examples, codes) = match is_root {
        true => ("", after.as_str()),
        false => (after.as_str(), EXIT_STATUS),
    };
    if let Some((_, examples)) = examples.split_once(":\n") {
        section("EXAMPLES", &verbatim(examples))?;
    }
    section(
        "EXIT STATUS",
        &verbatim(codes.trim_start_matches("Exit codes:\n")),
    )?;
    let files = FILES.map(|(path, what)| format!(".TP\n{}\n{}", escaped(path), escaped(what)));
    section("FILES", &files.join("\n"))?;
    section("SEE ALSO", &escaped(&related.join(", ")))?;
    Ok(text)
}

/// Of roff: lines as they are.
fn verbatim(text: &str) -> String {
    format!(".nf\n{}\n.fi", escaped(text.trim_end()))
}

/// What roff would take for a request or an escape.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('-', "\\-");
    let lines = text
        .lines()
        .map(|line| match line.starts_with(['.', '\'']) {
            true => format!("\\&{line}"),
            false => line.to_owned(),
        });
    lines.collect::<Vec<_>>().join("\n")
}

/// rdmaprep-config.toml(5): the example, which describes every key.
fn config_page(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    let example = include_str!("config.toml");
    let page = format!(
        ".TH rdmaprep-config.toml 5\n.SH NAME\nrdmaprep\\-config.toml \\- what the host settles \
        for rdmaprep\n.SH DESCRIPTION\n/etc/rdmaprep/config.toml may be absent; each key has the \
        default that stands here behind #.\n.SH KEYS\n{}\n.SH SEE ALSO\nrdmaprep(1)\n",
        verbatim(example)
    );
    fs::write(folder.join("rdmaprep-config.toml.5"), page).context("writing rdmaprep-config.toml.5")
}
