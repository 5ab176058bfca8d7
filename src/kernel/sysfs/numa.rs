use rdma_model::snapshot::{Cpu, NumaNode};

use super::dir::Dir;
use super::root::Root;

pub(super) fn nodes(root: &Root) -> Vec<NumaNode> {
    let Some(dir) = root.dir("devices/system/node") else {
        return Vec::new();
    };
    let names = dir.names();
    let mut nodes: Vec<NumaNode> = names.iter().filter_map(|name| node(&dir, name)).collect();
    nodes.sort_by_key(|n| n.id);
    nodes
}

fn node(dir: &Dir, name: &str) -> Option<NumaNode> {
    Some(NumaNode {
        id: name.strip_prefix("node")?.parse().ok()?,
        cpumap: dir.sub(name)?.attr("cpumap")?,
    })
}

/// The processor. Unlike /proc/cpuinfo this is part of a /sys, and asking for it disturbs no
/// processor.
pub(super) fn cpu(root: &Root) -> Option<Cpu> {
    parse(&root.dir("devices/system/cpu")?.attr("modalias")?)
}

/// The processor that we were built for: some kernels have no modalias. It says enough of all but
/// x86.
pub(in crate::kernel) fn this_cpu() -> Cpu {
    let arch = match std::env::consts::ARCH {
        "aarch64" => "arm64",
        "powerpc64" => "ppc64",
        other => other,
    };
    Cpu {
        arch: arch.to_owned(),
        ..Cpu::default()
    }
}

/// `cpu:type:x86,ven0000fam0006mod008F:feature:…`: numbers in hex (CPU_FEATURE_TYPEFMT in
/// arch/x86/include/asm/cpufeature.h); `cpu:type:aarch64:feature:…` elsewhere (print_cpu_modalias()
/// in drivers/base/cpu.c).
fn parse(modalias: &str) -> Option<Cpu> {
    let kind = modalias.strip_prefix("cpu:type:")?.split(':').next()?;
    let (arch, ids) = kind.split_once(',').unwrap_or((kind, ""));
    let arch = match arch {
        "x86" => "x86_64",
        "aarch64" => "arm64",
        "ppc64le" => "ppc64",
        other => other,
    };
    let vendor = number(ids, "ven").and_then(vendor).map(str::to_owned);
    Some(Cpu {
        arch: arch.to_owned(),
        vendor,
        family: number(ids, "fam"),
        model: number(ids, "mod"),
    })
}

fn number(ids: &str, key: &str) -> Option<u32> {
    let digits = ids.split_once(key)?.1.get(..4)?;
    u32::from_str_radix(digits, 16).ok()
}

/// X86_VENDOR_* (arch/x86/include/asm/processor.h) as CPUID spells them.
fn vendor(number: u32) -> Option<&'static str> {
    match number {
        0 => Some("GenuineIntel"),
        2 => Some("AuthenticAMD"),
        5 => Some("CentaurHauls"),
        9 => Some("HygonGenuine"),
        10 => Some("  Shanghai  "),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_known_by_their_modalias() {
        let parsed = |text| parse(text).map(|c| (c.arch, c.vendor, c.family, c.model));
        let x86 = |vendor: &str, family, model| {
            Some((
                "x86_64".into(),
                Some(vendor.into()),
                Some(family),
                Some(model),
            ))
        };
        let intel = "cpu:type:x86,ven0000fam0006mod008F:feature:,0000,0001";
        assert_eq!(parsed(intel), x86("GenuineIntel", 6, 143));
        assert_eq!(
            parsed("cpu:type:x86,ven0002fam0017mod0031:feature:"),
            x86("AuthenticAMD", 23, 49)
        );
        assert_eq!(
            parsed("cpu:type:aarch64:feature:,0000"),
            Some(("arm64".into(), None, None, None))
        );
        assert_eq!(
            parsed("cpu:type:x86,ven000Bfam0005:feature:"),
            Some(("x86_64".into(), None, Some(5), None))
        );
        assert_eq!(parsed("acpi:x86"), None);
    }
}
