//! Plans carried out: a step is done when the messages of the round before are.

use crate::error::Error;
use crate::operation::Fold;
use crate::plan::{Plan, Step};
use crate::request::{Kind, Request};
use crate::send::Mode;
use crate::slab::Id;
use crate::sys::Memory;
use crate::world::{Filter, World};
use alloc::boxed::Box;
use alloc::rc::Rc;
use glass_formats::trace::MpiRole;

impl World {
    /// Begins a plan; its request is done when all its steps are.
    pub(crate) fn start_plan(&mut self, plan: Plan) -> Id {
        self.about_collective(MpiRole::Collective, &plan.communicator, plan.root, plan.tag as u32, plan.bytes);
        let group = Rc::clone(plan.communicator.group());
        let id = self.requests.insert(Request::new(Kind::Plan(Some(Box::new(plan))), Memory::EMPTY, group));
        if !self.advance_plan(id.index).0 {
            self.plans.push(id.index);
        }
        id
    }

    /// Moves all plans on; whether anything moved.
    pub(crate) fn advance_plans(&mut self) -> bool {
        let mut has_moved = false;
        let mut place = 0;
        while let Some(index) = self.plans.get(place).copied() {
            let (is_done, moved) = self.advance_plan(index);
            has_moved |= moved;
            if is_done {
                self.plans.swap_remove(place);
            } else {
                place += 1;
            }
        }
        has_moved
    }

    /// Whether the plan is done, and whether it moved.
    fn advance_plan(&mut self, index: u32) -> (bool, bool) {
        let Some(Request { kind: Kind::Plan(place), .. }) = self.requests.at_mut(index) else { return (true, false) };
        let Some(mut plan) = place.take() else { return (true, false) };
        let before = plan.next;
        let mut error = None;
        let is_done = self.run_plan(&mut plan, &mut error);
        let has_moved = is_done || plan.next != before;
        if let Some(request) = self.requests.at_mut(index) {
            request.status.error = request.status.error.or(error);
            if !is_done {
                request.kind = Kind::Plan(Some(plan));
            }
        }
        if is_done {
            self.finish(index);
        }
        (is_done, has_moved)
    }

    fn run_plan(&mut self, plan: &mut Plan, error: &mut Option<Error>) -> bool {
        loop {
            if !self.is_round_over(plan, error) {
                return false;
            }
            loop {
                let Some(step) = plan.steps.get(plan.next) else {
                    if plan.waiting.is_empty() {
                        return true;
                    }
                    break;
                };
                match step {
                    Step::Round => {
                        plan.next += 1;
                        break;
                    }
                    Step::Send { to, memory } => {
                        let sent = self.plan_send(plan, *to, *memory);
                        plan.waiting.extend(sent);
                    }
                    Step::Receive { from, memory, fold } => {
                        let index = self.plan_receive(plan, *from, *memory, *fold);
                        plan.waiting.extend(index);
                    }
                    local => plan.run_local(local),
                }
                plan.next += 1;
            }
        }
    }

    /// Whether all messages that the plan waits for are here and gone.
    fn is_round_over(&mut self, plan: &mut Plan, error: &mut Option<Error>) -> bool {
        plan.waiting.retain(|index| match self.requests.at(*index) {
            Some(request) if !request.is_done => true,
            _ => {
                let done = self.requests.remove_at(*index);
                *error = error.or(done.and_then(|request| request.status.error));
                false
            }
        });
        plan.waiting.is_empty()
    }

    fn plan_send(&mut self, plan: &Plan, to: usize, memory: Memory) -> Option<u32> {
        let peer = plan.communicator.group().member(to)?;
        if self.try_send_short(peer, plan.context, plan.tag, memory) {
            return None;
        }
        let (context, tag) = (plan.context, plan.tag);
        Some(self.start_send_in(&plan.communicator, context, peer, tag, memory, Mode::Standard, None).index)
    }

    fn plan_receive(&mut self, plan: &Plan, from: usize, memory: Memory, fold: Option<Fold>) -> Option<u32> {
        let peer = plan.communicator.group().member(from)?;
        let mut request = Request::new(Kind::Receive, memory, Rc::clone(plan.communicator.group()));
        request.fold = fold;
        let index = self.requests.insert(request).index;
        self.post(index, Filter { context: plan.context, source: Some(peer), tag: Some(plan.tag) });
        Some(index)
    }
}
