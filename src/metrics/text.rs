//! The text that is printed or served.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::Seen;
use super::families::{FAMILIES, Kind};
use super::lines::Value;

/// OpenMetrics 1.0.0, as Prometheus asks for it.
pub fn openmetrics(seen: Seen) -> Result<String, fmt::Error> {
    let mut printed = String::new();
    text::encode(&mut printed, &registry(seen))?;
    Ok(printed)
}

/// The format before OpenMetrics, which node_exporter reads from files.
pub fn prometheus(seen: Seen) -> Result<String, fmt::Error> {
    let mut printed = String::new();
    prometheus_text::encode(&mut printed, &registry(seen))?;
    Ok(printed)
}

fn registry(seen: Seen) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(All(seen)));
    registry
}

#[derive(Debug)]
struct All(Seen);

impl Collector for All {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        for family in &FAMILIES {
            let samples = family.samples(&self.0);
            if samples.is_empty() {
                continue;
            }
            let kind = match family.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
            };
            let mut lines = encoder.encode_descriptor(family.name, family.help, None, kind)?;
            for sample in &samples {
                line(
                    family.kind,
                    sample.value,
                    lines.encode_family(&sample.labels)?,
                )?;
            }
        }
        Ok(())
    }
}

fn line(kind: Kind, value: Value, mut line: MetricEncoder) -> fmt::Result {
    match (kind, value) {
        (Kind::Counter, Value::Whole(n)) => line.encode_counter::<NoLabelSet, _, u64>(&n, None),
        (Kind::Counter, Value::Real(n)) => line.encode_counter::<NoLabelSet, _, u64>(&n, None),
        (Kind::Gauge, Value::Whole(n)) => line.encode_gauge(&n),
        (Kind::Gauge, Value::Real(n)) => line.encode_gauge(&n),
    }
}
