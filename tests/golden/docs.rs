//! What README, SECURITY and docs/ take from the types is made again and compared;
//! `UPDATE_GOLDEN=1` rewrites it. Their links lead somewhere, and their commands are what the
//! program reads.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use nccl_rules::explain::{VARIABLES, Variable};
use rdma_model::error_class::ErrorClass;
use rdma_model::values::Family;
use rdma_model::verdict::DropCode;
use rdmaprep::cli::{self, Cli, Global, SelectArgs};
use rdmaprep::doctor;
use rdmaprep::kernel::process::capabilities::KEPT;
use rdmaprep::nccl_env::libraries::SETTINGS;
use rdmaprep::report::{self, Report};
use rdmaprep::verify::LEFT_OUT;
use serde_json::Value;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

pub fn read(file: impl AsRef<Path>) -> String {
    let path = Path::new(ROOT).join(file);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Compares a file with what it must be, or writes it.
pub fn compare(file: &str, now: &str, expected: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(Path::new(ROOT).join(file), expected).unwrap();
        return;
    }
    assert!(
        now == expected,
        "{file}: UPDATE_GOLDEN=1 accepts this\n{}",
        diffy::create_patch(now, expected)
    );
}

/// Insists that the section of a file between `<!-- NAME … -->` and `<!-- /NAME -->` is this text.
pub fn section_is(file: &str, name: &str, section: &str) {
    let (text, begin, end) = (
        read(file),
        format!("<!-- {name}: "),
        format!("<!-- /{name} -->"),
    );
    let (before, rest) = text
        .split_once(&begin)
        .unwrap_or_else(|| panic!("{file}: no {begin}"));
    let (comment, rest) = rest.split_once("-->\n").unwrap();
    let (_, after) = rest
        .split_once(&end)
        .unwrap_or_else(|| panic!("{file}: no {end}"));
    compare(
        file,
        &text,
        &format!("{before}{begin}{comment}-->\n{section}{end}{after}"),
    );
}

/// A cell of a table: outside code, nothing of it is markup.
fn cell(text: &str) -> String {
    let text = text.replace('|', "\\|").replace('\n', " ");
    let plain = |part: &str| part.replace('*', "\\*").replace('<', "&lt;");
    let parts = text.split('`').enumerate().map(|(k, part)| {
        if k % 2 == 0 {
            plain(part)
        } else {
            part.to_owned()
        }
    });
    parts.collect::<Vec<_>>().join("`")
}

#[test]
fn exit_codes_in_docs_are_those_of_the_program() {
    let mut table = "| code | meaning |\n|---|---|\n| 0 | done, or nothing to do |\n".to_owned();
    table.extend(
        ErrorClass::ALL
            .iter()
            .map(|f| format!("| {} | {} |\n", f.code(), f.meaning())),
    );
    section_is("docs/recovery.md", "exit-codes", &table);
}

#[test]
fn what_a_comparison_leaves_out_is_in_docs() {
    let mut table = "| left out | why |\n|---|---|\n".to_owned();
    table.extend(
        LEFT_OUT
            .iter()
            .map(|(what, why)| format!("| {} | {} |\n", cell(what), cell(why))),
    );
    section_is("docs/recovery.md", "left-out", &table);
}

#[test]
fn finding_in_docs_is_a_golden_case() {
    let case = read("tests/cases/doctor/port_down-cable/expected.txt");
    section_is(
        "docs/doctor.md",
        "finding",
        &format!("```text\n{}\n```\n", case.trim_end()),
    );
}

#[test]
fn capabilities_in_security_md_are_those_that_a_hook_keeps() {
    let mut table = "| capability | what for |\n|---|---|\n".to_owned();
    table.extend(
        KEPT.iter()
            .map(|(_, name, why)| format!("| {name} | {why} |\n")),
    );
    section_is("SECURITY.md", "capabilities", &table);
}

/// Each code with the words of its type, and with an example of the golden cases, which have one
/// for each code.
#[test]
fn selection_rules_in_docs_are_those_of_the_program() {
    let mut examples: BTreeMap<DropCode, (String, String)> = BTreeMap::new();
    let mut cases: Vec<PathBuf> = fs::read_dir(format!("{ROOT}/tests/cases/select"))
        .unwrap()
        .map(|c| c.unwrap().path())
        .collect();
    cases.sort();
    for text in cases
        .iter()
        .filter_map(|case| fs::read_to_string(case.join("expected.json")).ok())
    {
        let selection: Value = serde_json::from_str(&text).unwrap();
        for dropped in selection["verdicts"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|v| v.get("dropped"))
        {
            let text = |key: &str| dropped[key].as_str().unwrap_or_default().to_owned();
            let code = serde_json::from_value(dropped["code"].clone()).unwrap();
            examples
                .entry(code)
                .or_insert_with(|| (text("why"), text("fix")));
        }
    }
    let mut table = "| # | code | reason | example | fix |\n|---:|---|---|---|---|\n".to_owned();
    table.extend(examples.iter().enumerate().map(|(k, (code, (why, fix)))| {
        format!(
            "| {} | `{code}` | {} | {} | {} |\n",
            k + 1,
            cell(&code.brief(Family::V4)),
            cell(why),
            cell(fix)
        )
    }));
    section_is("docs/selection.md", "rules", &table);
}

#[test]
fn checks_in_docs_are_those_of_doctor() {
    let mut table =
        "| check | what it looks at | node | container |\n|---|---|---|---|\n".to_owned();
    table.extend(doctor::checks().map(|(check, looks_at, made)| {
        let [node, container] = made.map(|made| if made { "yes" } else { "no" });
        format!(
            "| `{check}` | {} | {node} | {container} |\n",
            cell(looks_at)
        )
    }));
    section_is("docs/doctor.md", "checks", &table);
}

#[test]
fn settings_of_libraries_in_docs_are_those_of_the_program() {
    let mut table =
        "| library | variable | value | read in | release |\n|---|---|---|---|---|\n".to_owned();
    for setting in &SETTINGS {
        table += &format!(
            "| {} | `{}` | {} | `{}` | {} |\n",
            setting.library,
            setting.variable,
            setting.form.example(),
            setting.source,
            setting.release
        );
    }
    section_is("docs/libraries.md", "settings", &table);
}

#[test]
fn settings_of_nccl_in_docs_are_those_of_explain() {
    let mut table = "| setting | decides | releases | read in |\n|---|---|---|---|\n".to_owned();
    for variable in &VARIABLES {
        let releases = match variable.since {
            None => "all".to_owned(),
            Some(since) => format!("from {since} on"),
        };
        let source = match variable.source {
            None => "seen in the libraries".to_owned(),
            Some(file) => format!("`{file}`"),
        };
        let Variable { name, decides, .. } = variable;
        table += &format!("| `{name}` | {decides} | {releases} | {source} |\n");
    }
    section_is("docs/nccl.md", "settings", &table);
}

/// A table of the flags of `T`, with the keys of the config file's table that have the same names.
fn flags<T: Args>(keys: &toml::Table) -> String {
    let mut table = "| flag | variable | key | what it does |\n|---|---|---|---|\n".to_owned();
    for arg in T::augment_args(clap::Command::new("all")).get_arguments() {
        let (id, long) = (arg.get_id().as_str(), arg.get_long().unwrap());
        let variable = arg
            .get_env()
            .map(|v| format!("`{}`", v.to_str().unwrap()))
            .unwrap_or_default();
        let key = keys
            .keys()
            .find(|k| *k == id || k.strip_prefix(id) == Some("_no_ipv4"));
        let key = key.map(|k| format!("`{k}`")).unwrap_or_default();
        let help = arg
            .get_long_help()
            .or(arg.get_help())
            .unwrap()
            .to_string()
            .replace("\n\n", ". ");
        table += &format!("| `--{long}` | {variable} | {key} | {} |\n", cell(&help));
    }
    table
}

#[test]
fn settings_in_docs_are_those_of_the_program() {
    let example = read("examples/config.toml");
    // Its keys are comments, each with its default.
    let keys: Vec<&str> = example
        .lines()
        .filter_map(|l| l.strip_prefix('#'))
        .filter(|l| !l.starts_with(' '))
        .collect();
    let keys: toml::Table = keys.join("\n").parse().unwrap();
    let select = keys["select"].as_table().unwrap();
    section_is(
        "docs/configuration.md",
        "selection-flags",
        &flags::<SelectArgs>(select),
    );
    section_is(
        "docs/configuration.md",
        "global-flags",
        &flags::<Global>(&keys),
    );
    section_is(
        "docs/configuration.md",
        "config-file",
        &format!("```toml\n{example}```\n"),
    );
}

/// The help of a command, and of those below it.
fn help(command: &clap::Command, name: &str, page: &mut String) {
    let text = command.clone().bin_name(name).render_help().to_string();
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    *page += &format!(
        "\n## {name}\n\n```text\n{}\n```\n",
        lines.join("\n").trim_end()
    );
    for below in command
        .get_subcommands()
        .filter(|c| !c.is_hide_set() && c.get_name() != "help")
    {
        help(below, &format!("{name} {}", below.get_name()), page);
    }
}

#[test]
fn help_in_docs_is_that_of_the_program() {
    let mut command = cli::command();
    command.build();
    let intro = "The help of every command, as `rdmaprep COMMAND --help` prints it. Behind what a \
        flag does are its default and its \
                 variable. [Configuration](configuration.md) says more of the flags that select \
                 NICs, and of the global options.";
    let mut page = format!("# Command line\n\n{intro}\n");
    help(&command, "rdmaprep", &mut page);
    compare(
        "docs/cli.md",
        &fs::read_to_string(format!("{ROOT}/docs/cli.md")).unwrap_or_default(),
        &page,
    );
}

#[test]
fn readme_fits_on_a_page() {
    let readme = read("README.md");
    assert!(
        readme.lines().count() <= 120,
        "{} lines",
        readme.lines().count()
    );
    let wide: Vec<&str> = readme.lines().filter(|l| l.chars().count() > 100).collect();
    assert!(wide.is_empty(), "more than 100 columns: {wide:#?}");
}

/// Every page: tracked Markdown, below whatever folder.
fn pages() -> BTreeMap<PathBuf, String> {
    let mut folders = vec![PathBuf::from(ROOT)];
    let mut pages = BTreeMap::new();
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() && !name.starts_with('.') && !["target", "cases"].contains(&name) {
                folders.push(path);
            } else if name.ends_with(".md") {
                pages.insert(path.clone(), fs::read_to_string(path).unwrap());
            }
        }
    }
    assert!(pages.len() > 10);
    pages
}

/// The anchors of a page's headings, as forges make them.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page
        .lines()
        .filter(|l| l.starts_with('#'))
        .map(|l| l.trim_start_matches('#').trim().to_lowercase());
    let kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
    headings
        .map(|h| h.chars().filter(kept).collect::<String>().replace(' ', "-"))
        .collect()
}

#[test]
fn links_lead_somewhere() {
    let link = regex::Regex::new(r#"\]\(([^)\s]+)\)|(?:href|src|srcset)="([^"]+)""#).unwrap();
    let pages = pages();
    let mut dead = Vec::new();
    for (path, text) in &pages {
        for found in link.captures_iter(text) {
            let target = found.get(1).or(found.get(2)).unwrap().as_str();
            if target.contains("://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let to = if file.is_empty() {
                path.clone()
            } else {
                path.parent().unwrap().join(file)
            };
            let there = to.canonicalize().ok();
            let has = |to: &PathBuf| {
                anchor.is_empty()
                    || pages
                        .get(to)
                        .is_some_and(|page| anchors(page).contains(anchor))
            };
            if !there.as_ref().is_some_and(has) {
                dead.push(format!("{}: {target}", path.display()));
            }
        }
    }
    assert!(dead.is_empty(), "{dead:#?}");
}

/// The commands in a page's blocks: after a prompt, or lines of a script; one for lines that a
/// backslash joins.
fn commands(page: &str) -> Vec<String> {
    let (mut commands, mut block) = (Vec::new(), None);
    let page = page.replace("\\\n", " ");
    for line in page.lines() {
        match (line.strip_prefix("```"), block) {
            (Some(_), Some(_)) => block = None,
            (Some(kind), None) => block = Some(kind),
            (None, Some("console")) => {
                commands.extend(line.strip_prefix("# ").or(line.strip_prefix("$ ")))
            }
            (None, Some("sh")) => commands.push(line),
            _ => {}
        }
    }
    commands.into_iter().map(str::to_owned).collect()
}

/// A command's words, without what a shell does with them, and its comment.
fn words(line: &str) -> Vec<String> {
    let word = regex::Regex::new(r#"(?:[^\s"']|"[^"]*"|'[^']*')+"#).unwrap();
    let words = word
        .find_iter(line)
        .map(|w| w.as_str().replace(['"', '\''], ""));
    let mut words: Vec<String> = words
        .take_while(|w| !["#", "&", "|", ">", "<", "&&"].contains(&w.as_str()))
        .collect();
    // Variables before the program.
    let program = words.iter().position(|w| !w.contains('=')).unwrap_or(0);
    words.drain(..program);
    words
}

#[test]
fn commands_in_docs_are_read_by_the_program() {
    let mut read = 0;
    for (path, text) in pages() {
        for line in commands(&text) {
            let words = words(&line);
            if words.first().is_some_and(|w| w == "rdmaprep") {
                Cli::read(&words).unwrap_or_else(|e| panic!("{}: {line}: {e}", path.display()));
                read += 1;
            }
        }
    }
    assert!(read > 10, "{read}");
}

#[test]
fn commands_and_settings_in_docs_fit_100_columns() {
    for (path, text) in pages() {
        let mut block = "";
        for (number, line) in text.lines().enumerate() {
            block = match (line.strip_prefix("```"), block) {
                (Some(kind), "") => kind,
                (Some(_), _) => "",
                (None, block) => block,
            };
            let fits = line.chars().count() <= 100 || !["sh", "console", "toml"].contains(&block);
            assert!(fits, "{}:{}: {line}", path.display(), number + 1);
        }
    }
}

/// Follows the example of that name in README: each `rdmaprep prepare` with the recorded host of
/// `examples/`, and each line that README shows below it is what the program prints. The guests
/// follow the whole of it (tests/vm/inside.sh).
fn follows(name: &str) -> usize {
    let readme = read("README.md");
    let (_, example) = readme
        .split_once(&format!("<!-- example: {name} -->\n```console\n"))
        .expect(name);
    let dir = tempfile::TempDir::new().unwrap();
    fs::copy(
        format!("{ROOT}/examples/spec.json"),
        dir.path().join("config.json"),
    )
    .unwrap();
    let (mut printed, mut lines) = (None, 0);
    for line in example.split_once("```").unwrap().0.lines() {
        let Some(command) = line.strip_prefix("# ") else {
            let printed: &mut Vec<String> = if let Some(printed) = &mut printed {
                printed
            } else {
                continue;
            };
            let at = printed
                .iter()
                .position(|p| p == line)
                .unwrap_or_else(|| panic!("{name}: {line:?} not in {printed:#?}"));
            printed.drain(..=at);
            lines += 1;
            continue;
        };
        let mut words = words(command);
        printed = (words[..2] == ["rdmaprep", "prepare"]).then(|| {
            if let Some(at) = words.iter().position(|w| w == "--bundle") {
                words[at + 1] = dir.path().to_str().unwrap().to_owned();
            }
            let mut program = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
            program.args(&words[1..]).args([
                "--dry-run",
                "--config",
                "/dev/null",
                "--state-dir",
                "/nonexistent",
            ]);
            program
                .args(["--run-dir", "/nonexistent", "--snapshot"])
                .arg(format!("{ROOT}/examples/snapshot.json"));
            let output = program.env_clear().output().unwrap();
            assert!(
                output.status.success(),
                "{command}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            String::from_utf8(output.stdout)
                .unwrap()
                .lines()
                .map(str::to_owned)
                .collect()
        });
    }
    lines
}

#[test]
fn readme_shows_what_prepare_prints() {
    assert!(follows("podman") > 0);
    assert!(follows("runc") > 0);
}

/// The recording is of the demo as it is now: its headings, and what `prepare` and `restore` print
/// (scripts/record makes it again).
#[test]
fn recording_is_of_the_present_demo() {
    let cast = read("docs/pictures/demo.cast");
    let events = cast
        .lines()
        .skip(1)
        .map(|line| serde_json::from_str::<(f64, String, String)>(line).unwrap());
    // A line that is wider than the page goes on below.
    let recorded = events.map(|(_, _, text)| text.replace("\r\n", ""));
    let recorded = recorded.collect::<String>();
    let demo = read("tests/vm/demo");
    let headings: Vec<&str> = demo
        .lines()
        .filter_map(|line| line.strip_prefix("say \""))
        .collect();
    assert!(headings.len() > 4, "{headings:?}");
    let readme = read("README.md");
    let prepared = readme
        .lines()
        .filter(|line| line.ends_with(" kept") || line.starts_with("+ "));
    let constant = headings.iter().map(|line| {
        line.trim_end_matches('"')
            .split('$')
            .next()
            .unwrap_or_default()
    });
    for line in constant.chain(prepared) {
        assert!(recorded.contains(line), "not in the recording: {line}");
    }
    let mut killed = Report::new("restore");
    killed.container = Some("killed".to_owned());
    killed.nics = ["rdma0", "rdma1"].map(|nic| nic.parse().unwrap()).to_vec();
    let restored = report::restored(&killed, true);
    assert!(
        recorded.contains(&restored),
        "not in the recording: {restored}"
    );
    let picture = read("docs/pictures/demo.svg");
    assert!(picture.contains(&format!(">{restored}")), "{restored}");
}

/// Colours of the pictures on a light and on a dark ground.
const COLOURS: [(&str, &str); 7] = [
    ("#1f2328", "#e6edf3"),
    ("#59636e", "#9198a1"),
    ("#ffffff", "#0d1117"),
    ("#f6f8fa", "#151b23"),
    ("#d1d9e0", "#3d444d"),
    ("#0969da", "#4493f8"),
    ("#1a7f37", "#3fb950"),
];

#[test]
fn dark_picture_is_the_light_one_in_other_colours() {
    let light = read("docs/pictures/flow-light.svg");
    let dark = COLOURS
        .iter()
        .fold(light, |text, (light, dark)| text.replace(light, dark));
    let file = "docs/pictures/flow-dark.svg";
    compare(
        file,
        &fs::read_to_string(Path::new(ROOT).join(file)).unwrap_or_default(),
        &dark,
    );
}

/// They follow the reader's ground by themselves, and name what is there.
#[test]
fn pictures_fit_both_grounds_and_name_what_exists() {
    let units = fs::read_dir(Path::new(ROOT).join("hooks/systemd")).unwrap();
    let units: Vec<String> = units
        .map(|unit| unit.unwrap().file_name().into_string().unwrap())
        .collect();
    let command = cli::command();
    for name in ["way-back", "which-way", "kubernetes-node"] {
        let picture = read(format!("docs/pictures/{name}.svg"));
        assert!(
            picture.contains("@media (prefers-color-scheme: dark)"),
            "{name}"
        );
        // A colour that stands beside the rules is the same on both grounds.
        let (_, drawn) = picture.split_once("</style>").unwrap();
        assert!(!drawn.contains('#'), "{name}");
        let texts = drawn.lines().filter(|line| line.contains("class=\"mono\""));
        for text in texts {
            let (_, words) = text.split_once('>').unwrap();
            let words = words.trim_end_matches("</text>");
            let mut words = words.split(' ');
            let (first, second) = (words.next().unwrap(), words.next());
            match (first, second) {
                ("rdmaprep", Some(word)) => {
                    assert!(command.find_subcommand(word).is_some(), "{name}: {word}");
                }
                (unit, _) if unit.starts_with("rdmaprep-") && unit.contains('.') => {
                    assert!(units.iter().any(|u| u == unit), "{name}: {unit}");
                }
                _ => {}
            }
        }
    }
}

/// The drawing in docs is that of the golden case of a machine with 8 GPUs.
#[test]
fn topology_in_docs_is_a_golden_case() {
    let file = "docs/pictures/topo.svg";
    let now = fs::read_to_string(Path::new(ROOT).join(file)).unwrap_or_default();
    compare(file, &now, &read("tests/cases/topo/large/topo.svg"));
}
