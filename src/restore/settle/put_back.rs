//! Puts back what is missing, as soon as no manager is about to make it, and deletes double rules.

use std::time::Instant;

use anyhow::Result;
use rdma_model::drift::Drift;
use rdma_model::effect::{MadeAgainBy, compare_rules, doubled_since, same_rule};
use rdma_model::moved_nic::MovedNic;
use rdma_model::snapshot::{Route, Rule, Snapshot};
use rdma_model::step::{Side, Step, lost_link_local};

use super::{Next, Settling, TRIES};
use crate::kernel::Scope;
use crate::precedence::Precedence;
use crate::restore::diff::rule_delete;
use crate::restore::look_inside::look_inside;
use crate::restore::of_host::foreign_rules;
use crate::restore::order::put_in_order;
use crate::restore::plan::{Goal, plan_restore};
use crate::restore::refusals;
use crate::restore::time_for_steps;
use crate::restore::to_put_back::{Words, order_of, to_put_back};
use crate::verify;

fn has_double_rule(held: &MovedNic, host: &Snapshot) -> bool {
    held.managed.as_ref().is_some_and(|managed| {
        let rules = compare_rules(
            &held.before.rules,
            &host.rules,
            MadeAgainBy::Manager(managed),
        );
        !rules.double.is_empty()
    })
}

fn is_delete_of_same(step: &Step, rule: &Rule) -> bool {
    matches!(step, Step::RuleDelete { rule: other, .. } if same_rule(other, rule))
}

fn missing_route(route: &Route) -> Drift {
    let dev = route.hops.iter().find_map(|hop| hop.dev.as_ref());
    Drift {
        dev: dev.map_or("host".to_owned(), ToString::to_string),
        field: format!("route {route}"),
        expected: Some(route.to_string()),
        observed: None,
    }
}

impl Settling<'_> {
    pub(super) fn put_back(&mut self, host: &Snapshot, words: &Words) -> Result<Next> {
        let parts = to_put_back(self.back.held, words, host);
        let order = order_of(self.back.order, self.back.held, &parts);
        let lacking = self.lacking(&parts, &order, host);
        let is_double = |h: &MovedNic| has_double_rule(h, host);
        if lacking.is_empty() && !parts.iter().any(is_double) && self.doubled(host).is_empty() {
            return Ok(Next::End(lacking));
        }
        let over = self.is_over();
        let may_try = if over {
            !self.tried_late
        } else {
            self.failed || self.tries < TRIES
        };
        if may_try {
            self.tried_late = over;
            if self.restore_once_more(&parts, &order, host)? {
                self.tries += 1;
                self.lacked.get_or_insert(lacking);
                self.last = None;
                return Ok(Next::Look);
            }
        }
        // What lacks may still come from the kernel.
        Ok(if over { Next::End(lacking) } else { Next::Look })
    }

    fn lacking(&self, parts: &[MovedNic], order: &Precedence, host: &Snapshot) -> Vec<Drift> {
        let mut lacking = verify::lacking(parts, host);
        lacking.extend(verify::rdma_drift(self.back.held, host));
        lacking.extend(order.drift(host));
        lacking.extend(self.back.host_objects.missing(host).drift());
        lacking.extend(self.lost_routes(host).iter().map(missing_route));
        lacking
    }

    /// What a script of a manager made when it found a NIC's rules missing, just before they came.
    fn doubled<'h>(&self, host: &'h Snapshot) -> Vec<&'h Rule> {
        let Some(before) = self.back.rules else {
            return Vec::new();
        };
        let held = self.back.held;
        let mut doubled = doubled_since(&foreign_rules(held), &host.rules, before);
        doubled.retain(|rule| held.iter().all(|h| !h.before.rules.contains(rule)));
        doubled
    }

    /// The kernel's, which a manager deletes that has taken a link and let go of it.
    fn lost_routes(&self, host: &Snapshot) -> Vec<Route> {
        let free = self.back.held.iter().filter(|h| h.managed.is_none());
        let links = free.filter_map(|h| host.netdev(h.name()));
        links
            .filter_map(|dev| lost_link_local(dev, &host.routes))
            .collect()
    }

    /// Plans the restore again from what is there, and does it. Returns whether there was something
    /// to do.
    fn restore_once_more(
        &mut self,
        parts: &[MovedNic],
        order: &Precedence,
        host: &Snapshot,
    ) -> Result<bool> {
        // What a failed step left there is not created again here. Where it cannot be observed,
        // nothing is taken for gone that may still be there.
        let Ok(inside) = look_inside(self.world, self.back.held) else {
            self.failed = true;
            return Ok(false);
        };
        let mut restore = plan_restore(parts, host, inside.as_ref(), Goal::Effect);
        let steps = &mut restore.steps;
        steps.extend(self.back.host_objects.missing(host).steps());
        let side = Side::Host;
        let lost = self.lost_routes(host).into_iter();
        steps.extend(lost.map(|route| Step::RouteAdd { side, route }));
        // Of two that do the same, one stays.
        let mut doubled = self.doubled(host);
        doubled.retain(|rule| !steps.iter().any(|step| is_delete_of_same(step, rule)));
        steps.extend(doubled.iter().map(|rule| rule_delete(side, rule)));
        let has_steps = !restore.all_steps().is_empty();
        let deadline = Instant::now() + time_for_steps(self.patience);
        let done = refusals::carry_out(&restore, self.world, deadline, |_| {});
        (self.failed, self.refused) = (!done.errors.is_empty(), done.refused);
        if order.is_empty() {
            return Ok(has_steps);
        }
        let scope = Scope::network().with(self.routes());
        let now = self.world.observe(Side::Host, &scope);
        let Ok(ordered) = now.and_then(|now| put_in_order(self.world, Side::Host, order, &now))
        else {
            self.failed = true;
            return Ok(has_steps);
        };
        self.failed |= !ordered.errors.is_empty();
        Ok(has_steps || ordered.steps > 0)
    }
}
