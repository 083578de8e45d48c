//! Info objects: texts by key.

use crate::global::{comm, find, objects};
use crate::handles::{COMM_SELF, Handle, INFO_ENV, INFO_NULL, Kind, handle_of};
use crate::memory::{put_text, text_of};
use alloc::vec::Vec;
use core::ffi::{c_char, c_int};
use glass_lib_mpi::Error;

const KEY_BYTES_MAX: usize = 256;
const VALUE_BYTES_MAX: usize = 1024;

/// Keys and values in their order.
pub type Texts = Vec<(Vec<u8>, Vec<u8>)>;

fn texts(info: Handle) -> Result<&'static mut Texts, Error> {
    find(&mut objects().infos, Kind::Info, info).map(|(_, texts)| texts).ok_or(Error::Info)
}

/// What an info object has; nothing for the predefined ones.
fn read(info: Handle) -> Result<Texts, Error> {
    if info == INFO_ENV { Ok(Texts::new()) } else { texts(info).cloned() }
}

fn add(texts: Texts) -> Handle {
    handle_of(Kind::Info, objects().infos.insert(texts))
}

unsafe fn key_of(key: *const c_char) -> Result<Vec<u8>, Error> {
    let key = unsafe { text_of(key) };
    if key.is_empty() || key.len() >= KEY_BYTES_MAX { Err(Error::InfoKey) } else { Ok(key) }
}

fn value_of(texts: &Texts, key: &[u8]) -> Option<Vec<u8>> {
    texts.iter().find(|(other, _)| other == key).map(|(_, value)| value.clone())
}

mpi! {
    fn MPI_Info_create(info: *mut Handle) on COMM_SELF; { *info = add(Texts::new()); Ok(()) }

    fn MPI_Info_create_env(_count: c_int, _arguments: *mut *mut c_char, info: *mut Handle) on COMM_SELF; {
        *info = add(Texts::new());
        Ok(())
    }

    fn MPI_Info_dup(info: Handle, copy: *mut Handle) on COMM_SELF; {
        let texts = read(info)?;
        *copy = add(texts);
        Ok(())
    }

    fn MPI_Info_free(info: *mut Handle) on COMM_SELF; {
        let (id, _) = find(&mut objects().infos, Kind::Info, *info).ok_or(Error::Info)?;
        objects().infos.remove(id);
        *info = INFO_NULL;
        Ok(())
    }

    fn MPI_Info_set(info: Handle, key: *const c_char, value: *const c_char) on COMM_SELF; {
        let (key, value) = (key_of(key)?, text_of(value));
        if value.is_empty() || value.len() >= VALUE_BYTES_MAX {
            return Err(Error::InfoValue);
        }
        let texts = texts(info)?;
        match texts.iter_mut().find(|(other, _)| *other == key) {
            Some((_, before)) => *before = value,
            None => texts.push((key, value)),
        }
        Ok(())
    }

    fn MPI_Info_delete(info: Handle, key: *const c_char) on COMM_SELF; {
        let key = key_of(key)?;
        let texts = texts(info)?;
        let place = texts.iter().position(|(other, _)| *other == key).ok_or(Error::InfoNoKey)?;
        texts.remove(place);
        Ok(())
    }

    fn MPI_Info_get(info: Handle, key: *const c_char, capacity: c_int, value: *mut c_char, flag: *mut c_int) on COMM_SELF; {
        let found = value_of(&read(info)?, &key_of(key)?);
        *flag = found.is_some().into();
        if let Some(found) = found {
            put_text(&found, value, core::ptr::null_mut(), capacity as usize + 1);
        }
        Ok(())
    }

    fn MPI_Info_get_string(info: Handle, key: *const c_char, capacity: *mut c_int, value: *mut c_char, flag: *mut c_int) on COMM_SELF; {
        let found = value_of(&read(info)?, &key_of(key)?);
        *flag = found.is_some().into();
        if let Some(found) = found {
            if *capacity > 0 {
                put_text(&found, value, core::ptr::null_mut(), *capacity as usize);
            }
            *capacity = found.len() as c_int + 1;
        }
        Ok(())
    }

    fn MPI_Info_get_valuelen(info: Handle, key: *const c_char, length: *mut c_int, flag: *mut c_int) on COMM_SELF; {
        let found = value_of(&read(info)?, &key_of(key)?);
        *flag = found.is_some().into();
        if let Some(found) = found {
            *length = found.len() as c_int;
        }
        Ok(())
    }

    fn MPI_Info_get_nkeys(info: Handle, count: *mut c_int) on COMM_SELF; {
        *count = read(info)?.len() as c_int;
        Ok(())
    }

    fn MPI_Info_get_nthkey(info: Handle, index: c_int, key: *mut c_char) on COMM_SELF; {
        let texts = read(info)?;
        let (found, _) = usize::try_from(index).ok().and_then(|index| texts.get(index)).ok_or(Error::Arg)?;
        put_text(found, key, core::ptr::null_mut(), KEY_BYTES_MAX);
        Ok(())
    }

    fn MPI_Comm_set_info(owner: Handle, info: Handle) on owner; {
        let texts = if info == INFO_NULL { Texts::new() } else { read(info)? };
        comm(owner)?.info = texts;
        Ok(())
    }

    fn MPI_Comm_get_info(owner: Handle, info: *mut Handle) on owner; {
        let texts = comm(owner)?.info.clone();
        *info = add(texts);
        Ok(())
    }

    fn MPI_Abi_get_info(info: *mut Handle) on COMM_SELF; {
        let sizes: [(&[u8], &[u8]); 3] = [(b"mpi_aint_size", b"8"), (b"mpi_count_size", b"8"), (b"mpi_offset_size", b"8")];
        *info = add(sizes.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect());
        Ok(())
    }
}
