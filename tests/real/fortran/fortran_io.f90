! gfortran's I/O on files: formatted, list-directed and namelist, unformatted with its record markers, direct access, stream
! access, positions, inquire, append, scratch and the error returns. libgfortran reads and writes by system calls of its own
! buffers, not through stdio. Started with the directory as its argument, like the C programs.
module checks
  implicit none
  integer :: passed = 0, failed = 0
  character(len=2048) :: dir = ''
contains
  subroutine check(ok, text)
    logical, intent(in) :: ok
    character(len=*), intent(in) :: text
    if (ok) then
      passed = passed + 1
      print '(2a)', 'ok   ', text
    else
      failed = failed + 1
      print '(2a)', 'FAIL ', text
    end if
  end subroutine check

  function in_dir(name) result(path)
    character(len=*), intent(in) :: name
    character(len=:), allocatable :: path
    path = trim(dir)//'/'//name
  end function in_dir
end module checks

program fortran_io
  use checks
  implicit none
  character(len=2048) :: base
  integer :: status
  call get_command_argument(1, base)
  dir = trim(base)//'/fortran_io'
  call execute_command_line('mkdir -p '''//trim(dir)//'''', exitstat=status)
  if (status /= 0) stop 2
  call formatted
  call unformatted
  call direct
  call streams
  call positions
  call errors
  print '(i0,a,i0,a)', passed, ' passed, ', failed, ' failed'
  if (failed /= 0) stop 1
contains

  subroutine formatted
    integer :: unit, i, k, wrong, ios
    real(8) :: x
    character(len=20) :: word
    integer :: first, second
    namelist /settings/ first, second
    open (newunit=unit, file=in_dir('formatted'), status='new', action='write', iostat=ios)
    call check(ios == 0, 'open status=new')
    do i = 1, 10000
      write (unit, '(i8,f12.4,1x,a)') i, i*0.25d0, 'text'
    end do
    write (unit, *) 17, 2.5d0, ' listed'
    close (unit)
    open (newunit=unit, file=in_dir('formatted'), status='old', action='read')
    wrong = 0
    do i = 1, 10000
      read (unit, '(i8,f12.4,1x,a)') k, x, word
      if (k /= i .or. x /= i*0.25d0 .or. word /= 'text') wrong = wrong + 1
    end do
    call check(wrong == 0, '10,000 formatted records')
    read (unit, *) k, x, word
    call check(k == 17 .and. x == 2.5d0 .and. word == 'listed', 'list-directed')
    read (unit, *, iostat=ios) k
    call check(ios < 0, 'end of file')
    close (unit)
    first = 3
    second = 4
    open (newunit=unit, file=in_dir('namelist'), status='replace')
    write (unit, nml=settings)
    first = 0
    second = 0
    rewind (unit)
    read (unit, nml=settings)
    close (unit)
    call check(first == 3 .and. second == 4, 'namelist')
    open (newunit=unit, file=in_dir('advance'), status='replace')
    write (unit, '(a)', advance='no') 'half'
    write (unit, '(a)') ' line'
    rewind (unit)
    read (unit, '(a)') word
    close (unit)
    call check(word == 'half line', 'advance=no')
  end subroutine formatted

  subroutine unformatted
    integer :: unit, i, n, wrong, ios, size
    real(8), allocatable :: a(:), b(:)
    allocate (a(100000), b(100000))
    a = [(i*1.5d0, i=1, 100000)]
    open (newunit=unit, file=in_dir('unformatted'), form='unformatted', status='replace')
    do n = 1, 10
      write (unit) n, a(1:n*10000)
    end do
    rewind (unit)
    wrong = 0
    do n = 1, 10
      b = 0
      read (unit) i, b(1:n*10000)
      if (i /= n .or. any(b(1:n*10000) /= a(1:n*10000))) wrong = wrong + 1
    end do
    call check(wrong == 0, 'ten unformatted records up to 800 kB')
    read (unit, iostat=ios) i
    call check(ios < 0, 'end of file')
    backspace (unit)
    backspace (unit)
    read (unit) i
    call check(i == 10, 'backspace over the last record')
    inquire (unit=unit, size=size)
    call check(size == 10*(4 + 8) + 55*10000*8, 'size with record markers')
    close (unit)
    open (newunit=unit, file=in_dir('unformatted'), form='unformatted', position='append', status='old')
    write (unit) 11
    close (unit)
    open (newunit=unit, file=in_dir('unformatted'), form='unformatted', status='old')
    do n = 1, 11
      read (unit) i
    end do
    call check(i == 11, 'position=append')
    close (unit)
  end subroutine unformatted

  subroutine direct
    integer :: unit, i, wrong, ios, next
    integer :: values(64)
    open (newunit=unit, file=in_dir('direct'), access='direct', form='unformatted', recl=256, status='replace')
    do i = 500, 1, -1
      values = i
      write (unit, rec=i) values
    end do
    values = -7
    write (unit, rec=250) values
    wrong = 0
    do i = 1, 500
      read (unit, rec=i) values
      if (i == 250) then
        if (any(values /= -7)) wrong = wrong + 1
      else
        if (any(values /= i)) wrong = wrong + 1
      end if
    end do
    call check(wrong == 0, '500 direct records written backwards, one overwritten')
    inquire (unit=unit, nextrec=next)
    call check(next == 501, 'nextrec')
    read (unit, rec=1000, iostat=ios) values
    call check(ios /= 0, 'reading a record that is not there fails')
    close (unit)
    open (newunit=unit, file=in_dir('direct_text'), access='direct', form='formatted', recl=16, status='replace')
    do i = 1, 100
      write (unit, '(i16)', rec=i) i*i
    end do
    read (unit, '(i16)', rec=77) i
    call check(i == 77*77, 'formatted direct access')
    close (unit)
  end subroutine direct

  subroutine streams
    integer :: unit, i, place, ios
    integer(1) :: bytes(1000), byte
    real(8) :: x
    bytes = [(int(mod(i, 100), 1), i=1, 1000)]
    open (newunit=unit, file=in_dir('stream'), access='stream', form='unformatted', status='replace')
    write (unit) bytes
    write (unit) 2.5d0
    inquire (unit=unit, pos=place)
    call check(place == 1009, 'inquire pos')
    write (unit, pos=501) int(-1, 1)
    read (unit, pos=500) byte
    call check(byte == 0, 'read at a place')
    read (unit) byte
    call check(byte == -1, 'and the byte written over after it')
    read (unit, pos=1001) x
    call check(x == 2.5d0, 'a real at its place')
    write (unit, pos=5001) 1
    read (unit, pos=3000) byte
    call check(byte == 0, 'the gap is zero')
    read (unit, pos=5001) i
    call check(i == 1, 'what was written behind it')
    read (unit, iostat=ios) byte
    call check(ios < 0, 'then the end')
    close (unit)
    open (newunit=unit, file=in_dir('stream_text'), access='stream', form='formatted', status='replace')
    write (unit, '(a)') 'first', 'second'
    inquire (unit=unit, pos=place)
    write (unit, '(a)') 'third'
    read (unit, '(i1)', pos=1, iostat=ios) i
    call check(ios /= 0, 'a letter is no number')
    close (unit)
    call check(place == 14, 'formatted stream position')
  end subroutine streams

  subroutine positions
    integer :: unit, ios, i
    logical :: there, opened
    character(len=10) :: line
    open (newunit=unit, file=in_dir('positions'), status='replace')
    write (unit, '(a)') 'one', 'two', 'three'
    backspace (unit)
    read (unit, '(a)') line
    call check(line == 'three', 'backspace in text')
    rewind (unit)
    read (unit, '(a)') line
    endfile (unit)
    rewind (unit)
    read (unit, '(a)') line
    read (unit, '(a)', iostat=ios) line
    call check(ios < 0, 'endfile cuts the file')
    flush (unit)
    inquire (unit=unit, opened=opened)
    inquire (file=in_dir('positions'), exist=there)
    call check(opened .and. there, 'inquire by unit and by name')
    close (unit, status='delete')
    inquire (file=in_dir('positions'), exist=there)
    call check(.not. there, 'close status=delete')
    do i = 1, 3
      open (newunit=unit, file=in_dir('appended'), position='append')
      write (unit, '(i0)') i
      close (unit)
    end do
    open (newunit=unit, file=in_dir('appended'), action='read')
    read (unit, *) i
    read (unit, *) i
    read (unit, *) i
    close (unit)
    call check(i == 3, 'opened and appended three times')
  end subroutine positions

  subroutine errors
    integer :: unit, ios
    character(len=2000) :: message
    open (newunit=unit, file=in_dir('absent'), status='old', iostat=ios, iomsg=message)
    call check(ios /= 0 .and. index(message, 'No such file') > 0, 'status=old of an absent file')
    open (newunit=unit, file=in_dir('appended'), status='new', iostat=ios)
    call check(ios /= 0, 'status=new of an existing file')
    open (newunit=unit, file=in_dir('no/such/place'), iostat=ios)
    call check(ios /= 0, 'open below an absent directory')
    open (newunit=unit, file=in_dir('appended'), action='read')
    write (unit, *, iostat=ios) 1
    call check(ios /= 0, 'writing what is open for reading')
    close (unit)
  end subroutine errors
end program fortran_io
