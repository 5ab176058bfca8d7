//! What devices make of a container's request.

use anyhow::Result;

use super::RailName;
use super::asked::Asked;
use crate::fault::Fault;
use crate::plan::Plan;
use crate::request::Request;

impl Request {
    /// This request of a container whose devices name its NICs, where no plan is stored: they are chosen among these.
    pub fn of_devices(&self) -> Request {
        let named = self.narrowing.devices.iter().flat_map(Asked::netdevs).cloned().collect::<Vec<_>>();
        let ifaces = if named.is_empty() { self.ifaces.clone() } else { named };
        Request { ifaces, ..self.clone() }
    }

    /// That a plan, which was narrowed already, gives a container all that its devices name, less what its annotations leave out.
    ///
    /// # Errors
    /// [`Fault::Refused`] with what it lacks.
    pub fn gives_devices(&self, plan: &Plan) -> Result<()> {
        let lacking = self.narrowing.devices.iter().flat_map(|asked| asked.lacking(plan));
        let unwanted = |name: &RailName| match name {
            RailName::Netdev(name) => self.narrowing.annotated(name).is_some(),
            RailName::Hca(name) => self.narrowing.excludes(name.as_str()).is_some(),
        };
        let names: Vec<String> = lacking.filter(|name| !unwanted(name)).map(|name| name.as_str().to_owned()).collect();
        if names.is_empty() {
            return Ok(());
        }
        let (names, plan) = (names.join(", "), &plan.name);
        Err(Fault::Refused.error(format!(
            "the container asks for {names} as devices, which plan {plan} cannot give it now: `rdmaprep prepare --dry-run` or \
             the host's policy says why; `rdmaprep cdi generate` makes the list of devices anew"
        )))
    }
}
