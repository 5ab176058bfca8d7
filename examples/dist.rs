//! Writes what a package has beside the program, from the command line's own types: completions,
//! manual pages, and the notices of the crates that are linked in.
//! `cargo run --example dist -- DIR`; scripts/package calls it.
#![allow(clippy::print_stderr, reason = "a tool for who builds packages")]

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap_complete::Shell;
use clap_complete::aot::generate;
use clap_mangen::Man;

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: dist DIR");
        return ExitCode::from(2);
    };
    match completions(&folder.join("completions")).and_then(|()| manual(&folder.join("man"))) {
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
        (Shell::Bash, "rdmaprep"),
        (Shell::Zsh, "_rdmaprep"),
        (Shell::Fish, "rdmaprep.fish"),
    ] {
        let mut text = Vec::new();
        generate(shell, &mut rdmaprep::cli::command(), "rdmaprep", &mut text);
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

fn rendered(command: clap::Command, name: &str) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    // clap keeps names for ever: a few dozen, in a program that ends at once.
    let name: &'static str = Box::leak(name.to_owned().into_boxed_str());
    Man::new(command.name(name)).date("").render(&mut text)?;
    text.flush()?;
    Ok(text)
}
