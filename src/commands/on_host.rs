//! The plan of a container on the host's network. No record is made for it: nothing has moved. So
//! the report of its create says what it has.

use anyhow::Result;
use rdma_model::snapshot::Snapshot;

use crate::config::network_mode::NetworkMode;
use crate::config::request::Request;
use crate::plan::Plan;
use crate::report::Report;
use crate::store::Store;

/// Nothing of a container that has ended, or that got no plan there.
pub(super) fn plan_on_host(
    store: &Store,
    request: &Request,
    id: &str,
    host: &Snapshot,
) -> Result<Option<Plan>> {
    let text = store.report(id)?;
    let report = text.and_then(|text| serde_json::from_str::<Report>(&text).ok());
    let report = report.filter(|r| r.exit_code == 0 && !r.is_of_stop());
    let given = report.and_then(|report| Some((report.plan?, report.nics)));
    let Some((name, nics)) = given else {
        return Ok(None);
    };
    let mut request = request.clone();
    request.select.network_mode = NetworkMode::Host;
    request.narrowing.only = Some(nics.into_iter().collect());
    let plan = store.plan(&name)?;
    Ok(plan.map(|plan| request.narrowed_plan(plan, Some(host))))
}
