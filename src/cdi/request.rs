//! What devices make of a container's request.

use anyhow::Result;

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

    /// That a plan, which was narrowed already, gives a container all that its devices name: the engine has given it all of their
    /// nodes. So it is for the devices to leave one out, and an annotation cannot.
    ///
    /// # Errors
    /// [`Fault::Refused`] with what it lacks.
    pub fn gives_devices(&self, plan: &Plan) -> Result<()> {
        let lacking = self.narrowing.devices.iter().flat_map(|asked| asked.lacking(plan));
        let names: Vec<String> = lacking.map(|name| name.as_str().to_owned()).collect();
        if names.is_empty() {
            return Ok(());
        }
        let (names, plan) = (names.join(", "), &plan.name);
        Err(Fault::Refused.error(format!(
            "the container asks for {names} as devices, which plan {plan} cannot give it now: its annotations, the host's policy \
             or `rdmaprep prepare --dry-run` say why; `rdmaprep cdi generate` makes the list of devices anew"
        )))
    }
}
