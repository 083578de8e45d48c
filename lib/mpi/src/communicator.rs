//! New communicators: their members agree on a number that none of them has used.

use crate::basic::Basic;
use crate::datatype::Datatype;
use crate::error::Error;
use crate::group::{Communicator, Group};
use crate::operation::{Operation, Predefined};
use crate::plan::Buffer;
use crate::sys::Staging;
use crate::world::World;
use alloc::rc::Rc;
use alloc::vec::Vec;

/// Above, a context would not fit into a slot.
const NUMBER_MAX: u32 = 1 << 30;

impl World {
    /// A number that no member has used; a collective call.
    fn agree_on_number(&mut self, communicator: &Rc<Communicator>) -> Result<u32, Error> {
        let highest = self.all_reduce_number(communicator, self.next_number, Predefined::Max)?;
        if highest >= NUMBER_MAX {
            return Err(Error::Other);
        }
        self.next_number = highest + 1;
        Ok(highest)
    }

    fn all_reduce_number(
        &mut self,
        communicator: &Rc<Communicator>,
        number: u32,
        operation: Predefined,
    ) -> Result<u32, Error> {
        let memory = Staging::new(4);
        memory.memory().write(0, &number.to_ne_bytes());
        let datatype = Rc::new(Datatype::of(Basic::Unsigned(4)));
        let buffer = Buffer { base: memory.memory().base(), count: 1, datatype };
        self.allreduce(communicator, None, &buffer, &Operation::Predefined(operation))?;
        Ok(number_at(memory.memory().as_slice(), 0))
    }

    /// A communicator of the same group with a context of its own; a collective call.
    pub fn duplicate(&mut self, communicator: &Rc<Communicator>) -> Result<Rc<Communicator>, Error> {
        let number = self.agree_on_number(communicator)?;
        Ok(Rc::new(Communicator::new(number, Rc::clone(communicator.group()), communicator.rank())))
    }

    /// A communicator of the ranks with the same color, in the order of their keys; a collective call. Without a color, none.
    pub fn split(
        &mut self,
        communicator: &Rc<Communicator>,
        color: Option<u32>,
        key: i32,
    ) -> Result<Option<Rc<Communicator>>, Error> {
        let number = self.agree_on_number(communicator)?;
        let size = communicator.size();
        let memory = Staging::new(size * 12);
        let datatype = Rc::new(Datatype::of(Basic::Byte));
        let all = Buffer { base: memory.memory().base(), count: size * 12, datatype };
        let parts: Vec<Buffer> = (0..size).map(|rank| all.part(rank * 12, 12)).collect();
        let mut own = [0; 12];
        own[..4].copy_from_slice(&u32::from(color.is_some()).to_ne_bytes());
        own[4..8].copy_from_slice(&color.unwrap_or(0).to_ne_bytes());
        own[8..].copy_from_slice(&key.to_ne_bytes());
        memory.memory().write(communicator.rank() * 12, &own);
        let id = self.start_allgather(communicator, None, &parts)?;
        self.wait_collective(id)?;
        let Some(color) = color else { return Ok(None) };
        let region = memory.memory();
        let words = region.as_slice();
        let is_ours = |rank: &usize| number_at(words, rank * 3) == 1 && number_at(words, rank * 3 + 1) == color;
        let mut chosen: Vec<(i32, usize)> =
            (0..size).filter(is_ours).map(|rank| (number_at(words, rank * 3 + 2) as i32, rank)).collect();
        chosen.sort();
        let members: Vec<u32> = chosen.iter().map(|(_, rank)| communicator.group().members()[*rank]).collect();
        Ok(self.member_of(number, members))
    }

    /// A communicator of a group of members; a collective call of all of `communicator`. None at ranks that are not in it.
    pub fn create(
        &mut self,
        communicator: &Rc<Communicator>,
        group: &Group,
    ) -> Result<Option<Rc<Communicator>>, Error> {
        let number = self.agree_on_number(communicator)?;
        Ok(self.member_of(number, group.members().to_vec()))
    }

    /// A communicator of a group, made by its members alone, which use `tag` for it.
    pub fn create_of_group(
        &mut self,
        communicator: &Rc<Communicator>,
        group: &Rc<Group>,
        tag: i32,
    ) -> Result<Option<Rc<Communicator>>, Error> {
        let Some(rank) = group.rank_of(self.rank) else { return Ok(None) };
        // Its own context for the agreement: that of the parent, with collective tags which the parent's calls do not reach soon.
        let meeting = Rc::new(Communicator::meeting(communicator, Rc::clone(group), rank, tag));
        let number = self.agree_on_number(&meeting)?;
        Ok(self.member_of(number, group.members().to_vec()))
    }

    fn member_of(&self, number: u32, members: Vec<u32>) -> Option<Rc<Communicator>> {
        let group = Group::new(members);
        let rank = group.rank_of(self.rank)?;
        Some(Rc::new(Communicator::new(number, Rc::new(group), rank)))
    }
}

fn number_at(bytes: &[u8], index: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[index * 4..index * 4 + 4]);
    u32::from_ne_bytes(word)
}
