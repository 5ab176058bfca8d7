//! The plans that the config file describes: `[[plans]]`.

use std::collections::BTreeSet;
use std::ops::{Range, RangeInclusive};

use rdma_model::values::PlanName;
use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue, Deserializer, Error};

use crate::config::options::SelectOptions;

/// A plan, and the options of `prepare` for it.
#[derive(Clone, Debug)]
pub struct ConfiguredPlan {
    pub name: PlanName,
    pub runtime: Option<String>,
    /// Of the hooks that `cdi generate` writes, in seconds.
    pub hook_timeout: Option<u32>,
    /// What the plan says itself, over what `[select]` says for all.
    pub select: SelectOptions,
}

/// What a plan has beside the keys of `[select]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Own {
    name: Spanned<PlanName>,
    runtime: Option<String>,
    hook_timeout: Option<Spanned<u32>>,
}

/// What is wrong in the file, and where.
#[derive(Clone)]
pub(super) struct Wrong {
    pub(super) span: Option<Range<usize>>,
    pub(super) text: String,
}

impl From<Error> for Wrong {
    fn from(e: Error) -> Wrong {
        Wrong {
            span: e.span(),
            text: e.message().to_owned(),
        }
    }
}

const OWN: [&str; 3] = ["name", "runtime", "hook_timeout"];
/// As `--hook-timeout` takes it.
const HOOK_TIMEOUT: RangeInclusive<u32> = 1..=3600;

/// The plans of that value, each over the file's `[select]`. An error has the place in the file.
pub(super) fn plans(
    of: Spanned<DeValue>,
    select: Option<&Spanned<DeValue>>,
) -> Result<Vec<ConfiguredPlan>, Wrong> {
    let mut seen = BTreeSet::new();
    let mut plans = Vec::new();
    for table in tables(of)? {
        let (name, plan) = plan(table, select)?;
        if plan.name.is_auto() {
            return Err(at(&name, "`auto` is made at each start, and is not stored"));
        }
        if !seen.insert(plan.name.to_string()) {
            return Err(at(&name, &format!("two plans have the name {}", plan.name)));
        }
        plans.push(plan);
    }
    Ok(plans)
}

fn tables(of: Spanned<DeValue>) -> Result<Vec<Spanned<DeTable>>, Wrong> {
    let wrong = at(&of, "`plans` is a list of tables, each as [[plans]]");
    let DeValue::Array(list) = of.into_inner() else {
        return Err(wrong);
    };
    DeArray::into_iter(list)
        .map(|one| {
            let span = one.span();
            match one.into_inner() {
                DeValue::Table(table) => Ok(Spanned::new(span, table)),
                _ => Err(wrong.clone()),
            }
        })
        .collect()
}

fn plan(
    table: Spanned<DeTable>,
    select: Option<&Spanned<DeValue>>,
) -> Result<(Spanned<PlanName>, ConfiguredPlan), Wrong> {
    let span = table.span();
    let (mut own, mut options) = (DeTable::new(), DeTable::new());
    if let Some(DeValue::Table(of_all)) = select.map(Spanned::get_ref) {
        options.clone_from(of_all);
    }
    for (key, value) in table.into_inner() {
        let into = match OWN.contains(&key.get_ref().as_ref()) {
            true => &mut own,
            false => &mut options,
        };
        into.remove(key.get_ref().as_ref());
        into.insert(key, value);
    }
    let own = Own::deserialize(Deserializer::from(Spanned::new(span.clone(), own)))?;
    let select = SelectOptions::deserialize(Deserializer::from(Spanned::new(span, options)))?;
    let wrong = own.hook_timeout.as_ref();
    if let Some(wrong) = wrong.filter(|seconds| !HOOK_TIMEOUT.contains(seconds.get_ref())) {
        return Err(at(
            wrong,
            "`hook_timeout` is no number of seconds from 1 to 3600",
        ));
    }
    let plan = ConfiguredPlan {
        name: own.name.get_ref().clone(),
        runtime: own.runtime,
        hook_timeout: own.hook_timeout.map(Spanned::into_inner),
        select,
    };
    Ok((own.name, plan))
}

fn at<T>(place: &Spanned<T>, text: &str) -> Wrong {
    Wrong {
        span: Some(place.span()),
        text: text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use crate::config::file::ConfigFile;

    fn wrong(text: &str) -> String {
        let e = ConfigFile::new(text).config().unwrap_err();
        format!("{e:#}")
    }

    #[test]
    fn a_plan_has_its_own_options_over_those_of_all() {
        let text = "plan = \"a\"\n[select]\ngid_timeout = 9\nifaces = [\"r0\"]\n\
            [[plans]]\nname = \"a\"\n\
            [[plans]]\nname = \"b\"\nifaces = [\"r1\"]\nruntime = \"runsc\"\nhook_timeout = 300\n";
        let config = ConfigFile::new(text).config().unwrap();
        let [a, b] = &config.plans[..] else {
            panic!("{:?}", config.plans);
        };
        assert_eq!((a.name.as_str(), b.name.as_str()), ("a", "b"));
        let ifaces = |of: &super::ConfiguredPlan| {
            let names: Vec<String> = of.select.ifaces.iter().map(ToString::to_string).collect();
            names.join(" ")
        };
        assert_eq!((ifaces(a), ifaces(b)), ("r0".to_owned(), "r1".to_owned()));
        assert_eq!(b.select.gid_timeout.get(), 9);
        assert_eq!((&a.runtime, b.runtime.as_deref()), (&None, Some("runsc")));
        assert_eq!((a.hook_timeout, b.hook_timeout), (None, Some(300)));
        assert_eq!(config.plan.unwrap().as_str(), "a");
    }

    #[test]
    fn a_wrong_plan_is_named_with_its_line() {
        for (text, line, words) in [
            ("[[plans]]\nifaces = []\n", 1, "missing field `name`"),
            (
                "[[plans]]\nname = \"a\"\nnics = 1\n",
                3,
                "unknown field `nics`",
            ),
            (
                "[[plans]]\nname = \"a\"\ngid_timeout = 0\n",
                3,
                "no number of seconds",
            ),
            (
                "[[plans]]\nname = \"a\"\nhook_timeout = 0\n",
                3,
                "from 1 to 3600",
            ),
            ("[[plans]]\nname = \"../a\"\n", 2, "no plan name"),
            ("[[plans]]\nname = \"auto\"\n", 2, "made at each start"),
            (
                "[[plans]]\nname = \"a\"\n[[plans]]\nname = \"a\"\n",
                4,
                "two plans have the name a",
            ),
            ("x = 1\n[[plans]]\nname = \"a\"\n", 1, "unknown field `x`"),
            ("plans = \"a\"\n", 1, "list of tables"),
            ("plans = [1]\n", 1, "list of tables"),
        ] {
            let said = wrong(text);
            assert!(
                said.contains(&format!("line {line}: ")) && said.contains(words),
                "{text}: {said}"
            );
        }
    }
}
