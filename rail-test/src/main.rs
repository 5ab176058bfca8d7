//! Parses, tests, prints, exits with the verdict's code.
#![forbid(unsafe_code)]

use std::fs;
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use ipnet::IpNet;
use rail_agreement::Rail as AgreedRail;
use rail_agreement::options::Options;
use rail_test::addresses::Own;
use rail_test::draw;
use rail_test::look::{Host, Place};
use rail_test::meet::{self, Asked, Cross, Ended, Keys, Wish};
use rail_test::pairs::{Pattern, Schedule};
use rail_test::verbs::{Rail, Settings, Verbs};
use rail_test::verdict::Verdict;
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_verbs::Device;
use rdmaprep::cli::{self, Cli, CrossRounds, RailTest, TestRailsArgs};
use rdmaprep::commands;
use rdmaprep::commands::test_rails::fix;
use rdmaprep::commands::test_rails::inside::{self, Inside};
use rdmaprep::commands::test_rails::unstored::{self, Tested};
use rdmaprep::commands::test_rails::{self, Target, Targets};
use rdmaprep::report;
use serde_json::json;

/// What a round takes beside its lanes: two visits to the store and the neighbours.
const ROUND: Duration = Duration::from_secs(10);
/// NCCL's limit counts from a packet to its answer, and this program's clock from one write to the
/// next, which a slow path takes longer for.
const LEAST: Duration = Duration::from_secs(1);
/// RT_TABLE_MAIN.
const MAIN: u32 = 254;
/// For the end, beside the rounds.
const END: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    // What looks into a container starts its own program for what may never answer there.
    if std::env::args_os()
        .nth(1)
        .is_some_and(|word| word == "try-nodes")
    {
        return match Cli::read(std::env::args_os()).map(commands::run) {
            Ok(Ok(())) => ExitCode::SUCCESS,
            Ok(Err(e)) => fail(&e, false),
            Err(e) => e.exit(),
        };
    }
    let cli = match RailTest::read(std::env::args_os()) {
        Ok(cli) => cli,
        // Help and version are no errors.
        Err(e) => match cli::complaint(&e) {
            Some(text) => return fail(&ErrorClass::Usage.error(text), false),
            None => e.exit(),
        },
    };
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        // `prepare` says it.
        Err(e) if cli.args.unstored => {
            let _ = report::json_error(&e).and_then(|text| commands::say(&text));
            ExitCode::from(ErrorClass::of(&e).code())
        }
        Err(e) => fail(&e, cli.args.json),
    }
}

fn fail(error: &anyhow::Error, is_json: bool) -> ExitCode {
    if is_json && !commands::has_said() {
        let _ = report::json_error(error).and_then(|text| commands::say(&text));
    }
    let _ = writeln!(
        std::io::stderr(),
        "rdmaprep-rail-test: {}",
        report::error_text(error)
    );
    ExitCode::from(ErrorClass::of(error).code())
}

fn run(cli: &RailTest) -> Result<()> {
    let args = &cli.args;
    let pattern: Pattern = args.pattern.parse().class(ErrorClass::Usage, "--pattern")?;
    let asked = test_rails::options(&args.rendezvous)?;
    let Some(name) = &args.container else {
        let targets = match args.unstored {
            true => unstored::targets(&asked),
            false => test_rails::targets(&cli.global, args, &asked),
        };
        return match targets {
            Ok(targets) => test(cli, pattern, asked, targets, None),
            Err(e) => Err(test_rails::refuse(asked, e)),
        };
    };
    match inside::find(&cli.global, name).and_then(|seen| seen.rails(&asked)) {
        Ok((targets, inside)) => inside.run(|| test(cli, pattern, asked, targets, Some(&inside))),
        Err(e) => Err(test_rails::refuse(asked, e)),
    }
}

/// On this thread, which is where the rails are: on this host, or `inside`.
fn test(
    cli: &RailTest,
    pattern: Pattern,
    asked: Options,
    targets: Targets,
    inside: Option<&Inside>,
) -> Result<()> {
    let args = &cli.args;
    let rails = match open(&targets) {
        Ok(rails) => rails,
        // The others would wait for this node until their deadline.
        Err(e) => return on_host(inside, || Err(test_rails::refuse(asked, e))),
    };
    let (rank, nodes) = (asked.rank, asked.nodes);
    ensure!(
        nodes > 1 || args.unstored,
        ErrorClass::Usage
            .error("there is one node alone: a test takes two, by --nodes or a launcher")
    );
    let own = own_wish(args, pattern);
    let longest = Schedule::new(pattern, nodes, 0).rounds().max(6) + 2;
    let run = asked.run.clone();
    let met = on_host(inside, || {
        let end = END + meet::farewell(nodes) * 2;
        test_rails::meet(asked, &targets, round(&own) * longest + end)
    })?;
    let mut store = match inside {
        Some(inside) => inside.store(met.store)?,
        None => met.store,
    };
    let keys = Keys::new(&run, &met.agreement.digest);
    let wish = meet::wish(store.as_mut(), &keys, rank, own, Instant::now() + END)?;
    let pattern: Pattern = wish
        .pattern
        .parse()
        .class(ErrorClass::Disagreed, "what rank 0 asks for cannot be used")?;
    let (targets, rails) = ordered(targets, rails, &met.agreement.rails)?;
    let asked = Asked {
        run,
        rank,
        nodes,
        host: met.host,
        schedule: Schedule::new(pattern, nodes, seed(met.agreement.digest.as_str())),
        digest: met.agreement.digest,
        cross: wish.cross,
        rails: targets
            .rails
            .iter()
            .map(|rail| rail.key.to_string())
            .collect(),
        // `prepare` has its own agreement for these.
        lost: match args.unstored {
            true => Vec::new(),
            false => met.agreement.lost,
        },
        round: round(&wish),
        own: own_addresses(&targets),
    };
    let begun = Instant::now();
    let look = host(&targets);
    let [a, b, c, d, ..] = test_rails::random_bits()?;
    let settings = settings(&targets, &wish);
    let mut transport = Verbs::new(rails, settings, &look, u32::from_ne_bytes([a, b, c, d]));
    let ended = meet::test(store.as_mut(), &asked, &mut transport, &mut |text| {
        test_rails::progress(begun, text);
    });
    // What it found would say that its ports are down.
    inside.map_or(Ok(()), Inside::still_runs)?;
    let ended = ended?;
    if args.unstored {
        return answer(&targets, &ended.verdict);
    }
    let told = [
        print(args, &asked, &ended),
        draw(args, &ended),
        fix(cli, &ended),
    ];
    let Some(verdict) = ended.verdict.error() else {
        return told.into_iter().collect();
    };
    // What rails lack says more than what was not written.
    for error in told.into_iter().filter_map(Result::err) {
        commands::warn(&[format!("{error:#}")]);
    }
    Err(verdict)
}

fn own_wish(args: &TestRailsArgs, pattern: Pattern) -> Wish {
    let millis = (args.seconds * 1000.0).ceil();
    Wish {
        pattern: pattern.to_string(),
        cross: match args.cross {
            CrossRounds::First => Cross::First,
            CrossRounds::All => Cross::All,
            CrossRounds::None => Cross::None,
        },
        flow: millis as u32,
        patience: args.timeout,
    }
}

/// How long a round may take: also of a node that NCCL's settings make more patient.
fn round(wish: &Wish) -> Duration {
    wish.patience() * 4 + wish.flow() + ROUND
}

/// Where the store is reached from.
fn on_host<T>(inside: Option<&Inside>, work: impl FnOnce() -> Result<T>) -> Result<T> {
    match inside {
        Some(inside) => inside.on_host(work),
        None => work(),
    }
}

fn settings(targets: &Targets, wish: &Wish) -> Settings {
    let pair = targets.queue_pair;
    let own = wish.patience();
    let by_nccl = pair.gives_up_after().map(|nccl| nccl.max(LEAST));
    Settings {
        traffic_class: pair.traffic_class,
        service_level: pair.service_level,
        timeout: pair.timeout,
        retries: pair.retries,
        limit: by_nccl.map_or(own, |nccl| own.min(nccl)),
        flow: wish.flow(),
    }
}

/// Opens the device of each rail. An error names the file that is missing, and its package.
fn open(targets: &Targets) -> Result<Vec<Rail>> {
    let nothing = |text: String| ErrorClass::Nothing.error(text);
    rdma_verbs::library().map_err(|why| {
        nothing(format!(
            "libibverbs.so.1 cannot be loaded ({why}): install libibverbs1 (Debian) or rdma-core"
        ))
    })?;
    let devices = rdma_verbs::devices().class(ErrorClass::Nothing, "listing the HCAs")?;
    let mut rails = Vec::new();
    for target in &targets.rails {
        if !devices.contains(&target.hca) {
            let provider = target.provider.unwrap_or("NAME");
            return Err(nothing(format!(
                "libibverbs does not know {}: its provider lib{provider}-rdmav*.so is missing, \
                install ibverbs-providers (Debian) or rdma-core; or its verbs node does not open",
                target.hca
            )));
        }
        let doing = || format!("opening {}", target.hca);
        let device = Device::open(&target.hca).class(ErrorClass::Nothing, doing())?;
        let gid = device.gid(target.port, target.gid_index.into());
        let netdev = target
            .netdev
            .as_ref()
            .and_then(|name| targets.snapshot.netdev(name));
        rails.push(Rail {
            device,
            hca: target.hca.clone(),
            port: target.port,
            is_ethernet: target.is_ethernet,
            gid_index: target.gid_index,
            gid: gid.class(ErrorClass::Nothing, doing())?,
            mac: netdev.and_then(|netdev| netdev.mac.clone()),
        });
    }
    Ok(rails)
}

/// In the agreement's order, and those alone.
fn ordered(
    targets: Targets,
    rails: Vec<Rail>,
    agreed: &[AgreedRail],
) -> Result<(Targets, Vec<Rail>)> {
    let mut left: Vec<Option<(Target, Rail)>> = Vec::new();
    left.extend(targets.rails.into_iter().zip(rails).map(Some));
    let (mut own, mut open) = (Vec::new(), Vec::new());
    for AgreedRail(key, _) in agreed {
        let is_it = |pair: &&mut Option<(Target, Rail)>| {
            pair.as_ref().is_some_and(|(target, _)| target.key == *key)
        };
        let pair = left.iter_mut().find(is_it).and_then(Option::take);
        let (target, rail) = pair.ok_or_else(|| anyhow!("rail {key} is agreed and not here"))?;
        own.push(target);
        open.push(rail);
    }
    Ok((
        Targets {
            rails: own,
            ..targets
        },
        open,
    ))
}

fn own_addresses(targets: &Targets) -> Own {
    let mut own = Own::default();
    for netdev in &targets.snapshot.netdevs {
        let is_rail = targets
            .rails
            .iter()
            .any(|rail| rail.netdev.as_ref() == Some(&netdev.name));
        for address in &netdev.addresses {
            own.addresses.push(address.address);
            let subnet = IpNet::new(address.address, address.prefix).map(|net| net.trunc());
            match is_rail {
                true => own.rails.extend(subnet),
                false => own.others.extend(subnet),
            }
        }
        for route in targets.snapshot.routes_of(&netdev.name).filter(|_| is_rail) {
            match route.table {
                MAIN => own.rails.push(route.destination),
                _ => own.by_source.push(route.destination),
            }
        }
    }
    own
}

fn host(targets: &Targets) -> Host {
    let mut places = Vec::new();
    for rail in &targets.rails {
        let netdev = rail
            .netdev
            .as_ref()
            .and_then(|name| targets.snapshot.netdev(name));
        places.push(Place {
            hca: rail.hca.clone(),
            port: rail.port,
            netdev: netdev.map(|netdev| (netdev.ifindex, netdev.name.clone())),
        });
    }
    Host(places)
}

/// The first 16 digits of the agreement: equal on all nodes.
fn seed(digest: &str) -> u64 {
    let digits = digest.get(..16).unwrap_or_default();
    u64::from_str_radix(digits, 16).unwrap_or_default()
}

/// What `prepare` reads.
fn answer(targets: &Targets, verdict: &Verdict) -> Result<()> {
    if !verdict.missing.is_empty() {
        return verdict.error().map_or(Ok(()), Err);
    }
    let mut tested = Tested {
        unexplained: verdict.unexplained().map(str::to_owned),
        warnings: verdict.warnings().cloned().collect(),
        failed: targets.untested.clone(),
    };
    for (rail, why) in verdict.failed_rails() {
        let target = targets.rails.get(rail);
        tested
            .failed
            .extend(target.map(|target| (target.key.clone(), why)));
    }
    commands::say(&serde_json::to_string(&tested)?)
}

fn draw(args: &TestRailsArgs, ended: &Ended) -> Result<()> {
    let (Some(path), Some(found)) = (&args.draw, &ended.findings) else {
        return Ok(());
    };
    let doing = format!("--draw: writing {}", path.display());
    fs::write(path, draw::svg(found)).class(ErrorClass::Other, doing)
}

fn fix(cli: &RailTest, ended: &Ended) -> Result<()> {
    match &cli.args.plan {
        Some(plan) if cli.args.fix && ended.verdict.apart => fix::keep_to_rails(&cli.global, plan),
        _ => Ok(()),
    }
}

fn print(args: &TestRailsArgs, asked: &Asked, ended: &Ended) -> Result<()> {
    if args.json {
        let failed = ended.verdict.failed_rails();
        let names = failed.iter().filter_map(|(rail, _)| asked.rails.get(*rail));
        let names: Vec<&String> = names.collect();
        return commands::say(&report::json(&json!({
            "verdict": ended.verdict,
            "failed": names,
            "found": ended.findings.as_ref().map(|found| found.json()),
        }))?);
    }
    let text = match &ended.findings {
        Some(found) => found.text(),
        None => ended.verdict.text(),
    };
    match text.is_empty() {
        true => Ok(()),
        false => commands::say(&report::printable_lines(&text)),
    }
}
